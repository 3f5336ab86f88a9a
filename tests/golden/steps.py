"""What cases are made of."""

from __future__ import annotations

from moldau.broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tests.golden.harness import Step


def create(*names: str, partitions: int = 1, **configs: str) -> Step:
    """Topics to work on."""
    chosen = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    topics = [CreatableTopic(name, partitions, 1, configs=chosen) for name in names]
    return Step(CreateTopicsRequest(topics=topics, timeout_ms=10_000), is_setup=True)
