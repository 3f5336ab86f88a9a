"""Producers and consumers of every family that go on by themselves and note all they learn.

    producers = [ConfluentLoad(broker.bootstrap, observer, "a"), AiokafkaLoad(…, "b")]
    readers = [reader("kafka_python", broker.bootstrap, observer)]
    …                                     # whatever happens to the store
    for producer in producers: producer.finish()
    for one in readers: one.finish(views) # it got every record there is

Records are small and not many: what matters is what becomes of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import aiokafka
import confluent_kafka
from aiokafka.errors import KafkaError as AioKafkaError

from tests.support.brokers.running import Broker, wait_until
from tests.support.clients.member_process import CLIENTS
from tests.support.clients.members import Got, Member, MemberSettings
from tests.support.proofs.observer import NOT_THERE, Observer, View, after_gaps, read_epochs
from tests.support.raw.group import RawMember, coordinator_port, fetch_offsets
from tests.support.raw.kafka_python import (
    PROTOCOL,  # first: its import silences what kafka's warns of
)

assert PROTOCOL

import kafka  # noqa: E402
from kafka.errors import KafkaError as KafkaPythonError  # noqa: E402

PATIENCE_S = 60.0
BURST, PAUSE_S = 8, 0.03


class Load(threading.Thread, ABC):
    """A producer of numbered records, to every partition in turn."""

    idempotent: ClassVar[bool] = True

    def __init__(self, bootstrap: str, observer: Observer, name: str) -> None:
        super().__init__(name=f"producer {name}", daemon=True)
        self.bootstrap = bootstrap
        self.observer = observer
        self.prefix = name
        self.sent = 0
        self.acknowledged = 0
        self.failed: list[str] = []
        self.told = threading.Event()
        self.patience_s = PATIENCE_S  # to get everything answered at the end
        self._fault: BaseException | None = None
        if self.idempotent:
            observer.idempotent.add(name.encode())
        self.start()

    def next(self) -> tuple[int, bytes]:
        """Partition and value."""
        number = self.sent
        self.sent += 1
        padding = b"x" * (number * 37 % 400)
        value = b"%b:%d|%b" % (self.prefix.encode(), number, padding)
        return number % self.observer.partitions, value

    def delivered(self, partition: int, offset: int, value: bytes) -> None:
        self.observer.acknowledged(partition, offset, value)
        self.acknowledged += 1

    def run(self) -> None:
        try:
            self.produce()
        except BaseException as fault:
            self._fault = fault

    @abstractmethod
    def produce(self) -> None:
        """Produce until `told` is set, then wait until everything is answered."""

    def abandon(self) -> None:
        """Whatever is not answered yet."""
        self.patience_s = 1.0
        self.told.set()
        self.join(PATIENCE_S)

    def finish(self) -> None:
        self.told.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), f"{self.name}: {self.acknowledged} of {self.sent} answered"
        if self._fault is not None:
            raise self._fault
        assert not self.failed, f"{self.name}: {len(self.failed)} failed: {self.failed[:3]}"
        assert self.acknowledged == self.sent, f"{self.name}: {self.acknowledged} of {self.sent}"


class ConfluentLoad(Load):
    """librdkafka as it is by default for most of its users: idempotent."""

    settings: ClassVar[dict[str, Any]] = {"enable.idempotence": True}

    def produce(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 300,
                "retry.backoff.max.ms": 300,
                "log_level": 0,
                **self.settings,
            }
        )
        while not self.told.is_set():
            for _ in range(BURST):
                partition, value = self.next()
                producer.produce(
                    self.observer.topic, value, partition=partition, on_delivery=self._answered
                )
            producer.poll(PAUSE_S)
        producer.flush(self.patience_s)

    def _answered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(f"{message.value()[:20]!r}: {error}")
            return
        self.delivered(message.partition(), message.offset(), message.value())


class ConfluentLeaderLoad(ConfluentLoad):
    """acks=1, not idempotent: what it sends again after an error may be there twice."""

    idempotent = False
    settings: ClassVar[dict[str, Any]] = {"enable.idempotence": False, "acks": 1}


class KafkaPythonLoad(Load):
    def produce(self) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap, linger_ms=5, enable_idempotence=True, acks="all"
        )
        while not self.told.is_set():
            for _ in range(BURST):
                partition, value = self.next()
                future = producer.send(self.observer.topic, value=value, partition=partition)
                future.add_callback(self._answered, value)
                future.add_errback(lambda error: self.failed.append(repr(error)))
            time.sleep(PAUSE_S)
        try:
            producer.flush(self.patience_s)
        finally:
            producer.close(timeout=self.patience_s, null_logger=True)

    def _answered(self, value: bytes, metadata: Any) -> None:
        self.delivered(metadata.partition, metadata.offset, value)


class AiokafkaLoad(Load):
    def produce(self) -> None:
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            linger_ms=5,
            enable_idempotence=True,
            metadata_max_age_ms=2_000,
        )
        await producer.start()
        try:
            while not self.told.is_set():
                for _ in range(BURST):
                    partition, value = self.next()
                    topic = self.observer.topic
                    future = await producer.send(topic, value, partition=partition)
                    future.add_done_callback(lambda done, v=value: self._answered(done, v))
                await asyncio.sleep(PAUSE_S)
            await asyncio.wait_for(producer.flush(), self.patience_s)
        finally:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(producer.stop(), self.patience_s)

    def _answered(self, done: asyncio.Future[Any], value: bytes) -> None:
        error = done.exception()
        if error is not None:
            self.failed.append(repr(error))
            return
        metadata = done.result()
        self.delivered(metadata.partition, metadata.offset, value)


LOADS: dict[str, type[Load]] = {
    "confluent": ConfluentLoad,
    "confluent_leader": ConfluentLeaderLoad,
    "kafka_python": KafkaPythonLoad,
    "aiokafka": AiokafkaLoad,
}


class Reader:
    """A member of a group of its own, whom a commit that comes to nothing does not stop."""

    def __init__(self, family: str, bootstrap: str, observer: Observer) -> None:
        self.group = f"readers-{family}"
        self._observer = observer
        self._read: set[tuple[int, int]] = set()
        settings = MemberSettings(group=self.group, topics=[observer.topic], session_ms=30_000)
        self._member: Member = CLIENTS[family](bootstrap, settings)
        self._poll, self._commit = self._member.poll, self._member.commit
        self._member.poll, self._member.commit = self.poll, self.commit  # type: ignore[method-assign]
        self.refusals: list[str] = []
        self._member.start()

    def poll(self) -> list[Got]:
        found = self._poll()
        for got in found:
            self._read.add((got.place.partition, got.offset))
            self._observer.seen(got.place.partition, got.offset, got.value, self.group)
        return found

    def commit(self) -> None:
        try:
            self._commit()
        except (confluent_kafka.KafkaException, KafkaPythonError, AioKafkaError) as refusal:
            self.refusals.append(repr(refusal))

    def has_read_something(self) -> bool:
        self._member.check()
        return bool(self._read)

    def finish(self, views: Sequence[View]) -> None:
        """Once it has got every record there is."""
        everything = {
            (partition, record.offset)
            for partition, view in enumerate(views)
            for record in view.records
        }

        def done() -> bool:
            self._member.check()
            return everything <= self._read

        try:
            wait_until(done, PATIENCE_S, f"{self.group} gets everything")
        except AssertionError:
            missing = sorted(everything - self._read)
            raise AssertionError(
                f"{self.group} did not get {len(missing)} records: {missing[:5]}; {self.refusals}"
            ) from None
        self._member.stop()

    def stop(self) -> None:
        """Whatever it has got."""
        self._member.tell()
        self._member.join(PATIENCE_S)


class CommitWatch(threading.Thread):
    """Committed offsets of groups, looked at all the time: they never go back.

    But for a gap: a consumer that knows of epochs steps back to its beginning, where it reads the
    same record next.
    """

    def __init__(self, broker: Broker, observer: Observer, groups: Sequence[str]) -> None:
        super().__init__(name="watch of commits", daemon=True)
        self._observer = observer
        self._ports = {group: coordinator_port(broker, group) for group in groups}
        self._newest: dict[tuple[str, int], int] = {}
        self._steps_back: list[tuple[str, int, int, int]] = []
        self.told = threading.Event()
        self.looks = 0
        self.start()

    def run(self) -> None:
        wanted = {self._observer.topic: list(range(self._observer.partitions))}
        while not self.told.is_set():
            for group, port in self._ports.items():
                try:
                    with RawMember(port, group, timeout=10) as raw:
                        found = fetch_offsets(raw, group, wanted)
                except (*NOT_THERE, AssertionError):
                    continue  # it has no answer now
                for (_, partition), offset in found.items():
                    before = self._newest.get((group, partition), -1)
                    if offset < before:
                        self._steps_back.append((group, partition, before, offset))
                    self._newest[group, partition] = offset
                self.looks += 1
            time.sleep(0.05)

    def stop(self, store_url: str) -> dict[str, dict[int, int]]:
        """The newest committed offset of every group and partition."""
        self.told.set()
        self.join(PATIENCE_S)
        assert self.looks > 1
        for group, partition, before, offset in self._steps_back:
            epochs = read_epochs(store_url, self._observer.topic, partition)
            assert after_gaps(offset, epochs) >= after_gaps(before, epochs), (
                f"{group}, partition {partition}: committed {before}, then {offset}; {epochs}"
            )
        newest: dict[str, dict[int, int]] = {group: {} for group in self._ports}
        for (group, partition), offset in self._newest.items():
            newest[group][partition] = offset
        return newest
