"""Subscriptions to clients' metrics, by raw requests."""

from __future__ import annotations

from collections.abc import Mapping

from moldau.broker.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.ops.client.connection import Connection

CLIENT_METRICS = 16
_SET, _DELETE = 0, 1


def subscribe(client: Connection, name: str, configs: Mapping[str, str]) -> int:
    """Set these configurations of a subscription; the error code."""
    return _alter(client, name, _SET, configs)


def unsubscribe(client: Connection, name: str) -> int:
    """Remove all configurations of a subscription, and with them itself."""
    every = dict.fromkeys(("interval.ms", "metrics", "match"), "")
    return _alter(client, name, _DELETE, every)


def _alter(client: Connection, name: str, operation: int, configs: Mapping[str, str]) -> int:
    items = [AlterableConfig(key, operation, value) for key, value in configs.items()]
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(CLIENT_METRICS, name, items)])
    code: int = client.call(request, 1).responses[0].error_code
    return code
