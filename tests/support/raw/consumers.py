"""Members of the consumer protocol that speak it with Moldau's own codecs.

with RawConsumer(coordinator_port(broker, group), group) as member:
    member.join("orders")
    assert member.beat().error_code == 0
"""

from __future__ import annotations

import uuid
from typing import Any

from moldau.broker.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from tests.support.raw.client import RawClient

# What clients survive: all other errors of a heartbeat end them.
SURVIVED = {0, 14, 15, 16, 25, 110}


class RawConsumer(RawClient):
    """One member on a connection of its own. It notes its epoch and what it is assigned."""

    def __init__(self, port: int, group: str, *, member_id: str = "", timeout: float = 60) -> None:
        super().__init__(port, timeout=timeout)
        self.group = group
        self.member_id = member_id or uuid.uuid4().hex
        self.epoch = 0
        self.owned: dict[bytes, list[int]] = {}
        self.codes: list[int] = []
        self.topics: tuple[str, ...] = ()
        self.must_say_all = False
        """After an error or on a new connection: it does not know what was understood."""

    def resume(self, other: RawConsumer) -> None:
        """Go on for another connection of the same member."""
        self.member_id, self.epoch, self.topics = other.member_id, other.epoch, other.topics
        self.owned, self.must_say_all = other.owned, True

    def join(self, *topics: str, **fields: Any) -> Any:
        self.epoch, self.topics, self.owned = 0, topics, {}
        return self.heartbeat(
            0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=list(topics),
            topic_partitions=[],
            **fields,
        )

    def beat(self) -> Any:
        """Says nothing new."""
        return self.heartbeat(self.epoch)

    def tell(self) -> Any:
        """Says what it owns: all that it was assigned, and nothing else."""
        owned = [TopicPartitions(topic, numbers) for topic, numbers in self.owned.items()]
        said: dict[str, Any] = {}
        if self.must_say_all:
            said = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": list(self.topics)}
        return self.heartbeat(self.epoch, topic_partitions=owned, **said)

    def leave(self) -> Any:
        return self.heartbeat(-1)

    def heartbeat(self, epoch: int, version: int | None = None, **fields: Any) -> Any:
        request = ConsumerGroupHeartbeatRequest(self.group, self.member_id, epoch, **fields)
        answer: Any = self.call(request, version)
        self.codes.append(answer.error_code)
        self.must_say_all = answer.error_code != 0
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = {
                    one.topic_id: one.partitions for one in answer.assignment.topic_partitions
                }
        return answer

    @property
    def places(self) -> set[tuple[bytes, int]]:
        return {(topic, number) for topic, numbers in self.owned.items() for number in numbers}
