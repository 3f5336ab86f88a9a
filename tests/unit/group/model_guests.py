"""Classic clients inside a group of the consumer protocol, for random tests: eager or cooperative.

As `model_consumers`: what a client reads from (`reading`) is what counts.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from moldau.broker.errors import ErrorCode
from moldau.broker.group.effects import JoinAnswer, SyncAnswer
from moldau.broker.group.events import Join, Leave, LeavingMember, Sync
from moldau.broker.group.topics import TopicIdPartition
from moldau.broker.wire.consumer_protocol import parse_assignment
from tests.support.drivers.group_world import Call, GroupWorld


def subscription(topics: Iterable[str], owned: Iterable[tuple[str, int]]) -> bytes:
    """A subscription of version 1: topics, no user data, owned partitions."""
    names = list(topics)
    parts = [struct.pack(">hi", 1, len(names))]
    parts += [struct.pack(f">h{len(name)}s", len(name), name.encode()) for name in names]
    held = list(owned)
    parts.append(struct.pack(">ii", -1, len(held)))
    for name, number in held:
        parts.append(struct.pack(f">h{len(name)}sii", len(name), name.encode(), 1, number))
    return b"".join(parts)


@dataclass
class ModelClassicMember:
    g: GroupWorld
    name: str
    topics: tuple[str, ...]
    is_eager: bool
    member_id: str = ""
    generation: int = -1
    is_alive: bool = False
    reading: set[TopicIdPartition] = field(default_factory=set)
    joining: Call[JoinAnswer] | None = None
    syncing: Call[SyncAnswer] | None = None

    def start(self) -> None:
        if not self.is_alive:
            self.is_alive = True
            self._forget()

    def crash(self) -> None:
        self.is_alive = False
        self._forget()

    def leave(self) -> None:
        if self.is_alive and self.member_id:
            self.reading = set()
            self.g.send(Leave(self.g.call("leave"), (LeavingMember(self.member_id),)))
        self.crash()

    def _forget(self) -> None:
        self.member_id, self.generation, self.reading = "", -1, set()
        self.joining = self.syncing = None

    def lose_answer(self) -> None:
        """The connection broke: it joins again."""
        if self.joining is not None or self.syncing is not None:
            self.joining = self.syncing = None
            self.generation = -1

    def act(self) -> None:
        """One thing after the other, as far as it gets."""
        if not self.is_alive:
            return
        if self.joining is not None:
            self._joined()
        elif self.syncing is not None:
            self._synced()
        elif self.generation < 0:
            self._join()
        else:
            self._beat()

    def _join(self) -> None:
        if self.is_eager:
            self.reading = set()
        names = {topic.topic_id: topic.name for topic in self.g.topics.values()}
        owned = [(names[one], number) for one, number in sorted(self.reading) if one in names]
        self.joining = self.g.call(f"join of {self.name}")
        self.g.send(
            Join(
                self.joining,
                self.member_id,
                None,
                self.name,
                "host",
                20_000,
                30_000,
                "consumer",
                (("range", subscription(self.topics, owned)),),
            )
        )

    def _joined(self) -> None:
        assert self.joining is not None
        if self.joining.is_parked:
            return
        answer, self.joining = self.joining.answer, None
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif answer.error is ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.syncing = self.g.call(f"sync of {self.name}")
            self.g.send(Sync(self.syncing, self.member_id, None, self.generation))
        elif answer.error is ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget()

    def _synced(self) -> None:
        assert self.syncing is not None
        if self.syncing.is_parked:
            return
        answer, self.syncing = self.syncing.answer, None
        if answer.error is ErrorCode.NONE:
            given = parse_assignment(answer.assignment)
            assert given is not None
            self.reading = {
                (self.g.topics[topic].topic_id, number)
                for topic, number in given.partitions
                if topic in self.g.topics
            }
        elif answer.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._forget()
        else:
            self.generation = -1

    def _beat(self) -> None:
        error = self.g.groups.heartbeat(
            self.g.group_id, self.member_id, None, self.generation, self.g.now
        )
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.generation = -1
        elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._forget()
