"""Group members of the real clients, each in a thread of its own, behind one face.

A member polls, notes what it got, commits, polls again, until it is stopped: what an ordinary
application does. It commits before the next poll, so nothing is read twice unless a member dies.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import aiokafka
import confluent_kafka
import msgspec
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import (
    StickyPartitionAssignor as AioSticky,
)
from aiokafka.errors import KafkaError as AioKafkaError

from tests.support.clients.base import Place
from tests.support.raw.kafka_python import (
    PROTOCOL,  # first: its import silences what kafka's warns of
)

assert PROTOCOL

import kafka  # noqa: E402
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor  # noqa: E402
from kafka.coordinator.assignors.range import RangePartitionAssignor  # noqa: E402
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor  # noqa: E402
from kafka.coordinator.assignors.sticky.sticky_assignor import (  # noqa: E402
    StickyPartitionAssignor,
)
from kafka.errors import KafkaError as KafkaPythonError  # noqa: E402

POLL_S = 0.1
PATIENCE_S = 60.0
ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING = 22, 25, 27


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    topics: list[str] = []
    pattern: str | None = None  # instead of topics
    strategy: str = "range"
    instance: str | None = None
    session_ms: int = 10_000
    heartbeat_ms: int = 300
    metadata_age_ms: int = 1_000


class Got(msgspec.Struct, frozen=True):
    place: Place
    offset: int
    value: bytes


class Member(threading.Thread, ABC):
    """Start it, look at what it has got, stop it; `stop` fails with what went wrong in it."""

    def __init__(self, bootstrap: str, settings: MemberSettings) -> None:
        super().__init__(name=f"member of {settings.group}", daemon=True)
        self.bootstrap = bootstrap
        self.settings = settings
        self.got: list[Got] = []
        self.assigned: set[Place] = set()
        self.revocations: list[set[Place]] = []
        self.assignments = 0
        self.owes_commit = False
        """A commit was put off until the client has polled again."""
        self._stopped = threading.Event()
        self._fault: BaseException | None = None
        self._next_topics: list[str] | None = None

    def run(self) -> None:
        try:
            self.open()
            try:
                while not self._stopped.is_set():
                    topics, self._next_topics = self._next_topics, None
                    if topics is not None:
                        self.subscribe(topics)
                    found = self.poll()
                    self.got += found
                    if found or self.owes_commit:
                        self.commit()
            finally:
                self.close()
        except BaseException as fault:
            self._fault = fault

    def tell(self) -> None:
        """Let it stop; `stop` waits for it."""
        self._stopped.set()

    def follow(self, topics: list[str]) -> None:
        """Let it subscribe to these, and no others, before it polls again."""
        self._next_topics = topics

    def stop(self) -> None:
        self.tell()
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the member does not stop"
        if self._fault is not None:
            raise self._fault

    def check(self) -> None:
        if self._fault is not None:
            raise self._fault

    # --- what the client reports ---

    def gained(self, places: Iterable[Any]) -> None:
        self.assigned |= {Place(item.topic, item.partition) for item in places}
        self.assignments += 1

    def lost(self, places: Iterable[Any]) -> None:
        gone = {Place(item.topic, item.partition) for item in places}
        self.assigned -= gone
        if gone:
            self.revocations.append(gone)

    def refused(self, refusal: Exception) -> None:
        """A commit came to nothing, which is no fault: the records come again."""

    # --- the client ---

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def subscribe(self, topics: list[str]) -> None: ...

    @abstractmethod
    def poll(self) -> list[Got]: ...

    @abstractmethod
    def commit(self) -> None:
        """What was polled, before anything else is."""

    @abstractmethod
    def close(self) -> None: ...


class ConfluentMember(Member):
    strategies: ClassVar[tuple[str, ...]] = ("range", "roundrobin", "cooperative-sticky")

    def protocol(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "partition.assignment.strategy": settings.strategy,
            "session.timeout.ms": settings.session_ms,
            "heartbeat.interval.ms": settings.heartbeat_ms,
        }

    def open(self) -> None:
        settings = self.settings
        chosen: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": settings.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": settings.metadata_age_ms,
            **self.protocol(),
        }
        if settings.instance:
            chosen["group.instance.id"] = settings.instance
        self._consumer = confluent_kafka.Consumer(chosen)
        self.subscribe([f"^{settings.pattern}"] if settings.pattern else settings.topics)

    def subscribe(self, topics: list[str]) -> None:
        self._consumer.subscribe(
            topics,
            on_assign=lambda _, places: self.gained(places),
            on_revoke=lambda _, places: self.lost(places),
            on_lost=lambda _, places: self.lost(places),
        )

    def poll(self) -> list[Got]:
        found = []
        messages: list[Any] = self._consumer.consume(1000, POLL_S)
        for message in messages:
            error = message.error()
            if error is None:
                place = Place(message.topic(), message.partition())
                found.append(Got(place, message.offset(), message.value()))
            elif error.code() != confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise AssertionError(f"{error}")
        return found

    def commit(self) -> None:
        # While a cooperative rebalance completes a commit is refused for a moment: before the group
        # has its assignment, and until the client has read the answer that names the new
        # generation. The partitions stay ours until the next poll says otherwise.
        passing = {REBALANCING}
        if self.settings.strategy.startswith("cooperative"):
            passing.add(ILLEGAL_GENERATION)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._consumer.commit(asynchronous=False)
            except confluent_kafka.KafkaException as refusal:
                if refusal.args[0].code() not in passing or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def close(self) -> None:
        self._consumer.close()


class ConfluentConsumerMember(ConfluentMember):
    """A member of the consumer protocol (KIP-848): the broker assigns and sets the intervals."""

    strategies = ("uniform", "range")

    def protocol(self) -> dict[str, Any]:
        chosen = {"group.protocol": "consumer"}
        if self.settings.strategy in self.strategies:
            chosen["group.remote.assignor"] = self.settings.strategy
        return chosen


class KafkaPythonMember(Member):
    """kafka-python 3.0 takes up an assignment inside a poll only. A poll that ends while a join is
    under way leaves the member without heartbeats and without a generation to commit in until the
    next poll, whatever the broker has answered in between."""

    poll_s = 2.0
    strategies = ("range", "roundrobin", "sticky", "cooperative-sticky")
    _ASSIGNORS: ClassVar[dict[str, Any]] = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }

    def open(self) -> None:
        settings = self.settings
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=settings.group,
            group_instance_id=settings.instance,
            partition_assignment_strategy=[self._ASSIGNORS[settings.strategy]],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=settings.session_ms,
            heartbeat_interval_ms=settings.heartbeat_ms,
            metadata_max_age_ms=settings.metadata_age_ms,
        )
        if settings.pattern:
            self._consumer.subscribe(pattern=settings.pattern, listener=self._listener())
        else:
            self.subscribe(settings.topics)

    def subscribe(self, topics: list[str]) -> None:
        self._consumer.subscribe(topics=topics, listener=self._listener())

    def _listener(self) -> Any:
        member = self

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Any) -> None:
                member.gained(assigned)

            def on_partitions_revoked(self, revoked: Any) -> None:
                member.lost(revoked)

        return Listener()

    def poll(self) -> list[Got]:
        found = self._consumer.poll(timeout_ms=int(self.poll_s * 1000), max_records=1000)
        return [
            Got(Place(record.topic, record.partition), record.offset, record.value)
            for records in found.values()
            for record in records
        ]

    def commit(self) -> None:
        """Not repeated here while the client rebalances: only a poll ends that, and until then the
        member sends no heartbeats, so it would lose its membership to its own patience."""
        try:
            self._consumer.commit()
        except KafkaPythonError as refusal:
            if getattr(refusal, "errno", None) != REBALANCING:  # CommitFailedError has no number
                raise
            self.owes_commit = True
            self.refused(refusal)
        else:
            self.owes_commit = False

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class AiokafkaMember(Member):
    """Its rebalances run beside the application: what was polled is committed when it revokes."""

    strategies = ("range", "roundrobin", "sticky")
    _ASSIGNORS: ClassVar[dict[str, Any]] = {
        "range": AioRange,
        "roundrobin": AioRoundRobin,
        "sticky": AioSticky,
    }

    def open(self) -> None:
        settings = self.settings
        self._loop = asyncio.new_event_loop()

        async def start() -> None:
            self._consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap,
                group_id=settings.group,
                group_instance_id=settings.instance,
                partition_assignment_strategy=[self._ASSIGNORS[settings.strategy]],
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=settings.session_ms,
                heartbeat_interval_ms=settings.heartbeat_ms,
                metadata_max_age_ms=settings.metadata_age_ms,
            )
            topics = (
                {"pattern": settings.pattern} if settings.pattern else {"topics": settings.topics}
            )
            self._consumer.subscribe(listener=self._listener(), **topics)
            await self._consumer.start()

        self._loop.run_until_complete(start())

    def subscribe(self, topics: list[str]) -> None:
        async def change() -> None:  # it wakes tasks of the loop
            self._consumer.subscribe(topics=topics, listener=self._listener())

        self._loop.run_until_complete(change())

    def _listener(self) -> Any:
        member = self

        class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_assigned(self, assigned: Any) -> None:
                member.gained(assigned)

            async def on_partitions_revoked(self, revoked: Any) -> None:
                member.lost(revoked)
                if revoked:
                    await member._consumer.commit()

        return Listener()

    def poll(self) -> list[Got]:
        work = self._consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=1000)
        found = self._loop.run_until_complete(work)
        return [
            Got(Place(record.topic, record.partition), record.offset, record.value)
            for records in found.values()
            for record in records
        ]

    def commit(self) -> None:
        try:
            self._loop.run_until_complete(self._consumer.commit())
        except AioKafkaError as refusal:
            # A rebalance got in between: the listener commits.
            if not refusal.retriable and getattr(refusal, "errno", -1) not in (REBALANCING, -1):
                raise
            self.refused(refusal)

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()
