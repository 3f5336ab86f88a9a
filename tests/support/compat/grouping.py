"""What a group of every client's consumers must be able to do; a module per client runs them.

The module gives `member_class`, `client` and a broker that does not wait long for more members.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import msgspec
import pytest
import redis

from moldau.broker.group.record import GroupRecord, decode
from moldau.broker.placement import slot_of
from moldau.broker.store import keys
from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.clients.base import NewTopic, Place, Record
from tests.support.clients.members import Member, MemberSettings
from tests.support.compat.session import Session, send_all
from tests.support.raw.group import MEMBER_ID_REQUIRED, RawMember, coordinator_port, fetch_offsets

PATIENCE_S = 60.0
QUICK = {"group.initial.rebalance.delay.ms": 100}


def quick_broker() -> Iterator[Broker]:
    """A broker that rebalances at once, for a module's `moldau` fixture."""
    with running_broker(broker=QUICK) as broker:
        yield broker


class Stored(NamedTuple):
    """What the store has of a group of either protocol."""

    generation_id: int
    members: int


class Crew:
    """The members of one test; all are stopped at its end."""

    def __init__(self, kafka: Session, member_class: type[Member]) -> None:
        self.kafka = kafka
        self.group = f"group-{kafka.new_name()}"
        self.member_class = member_class
        self.members: list[Member] = []

    def join(self, topics: list[str], **settings: object) -> Member:
        chosen = msgspec.convert(
            {"group": self.group, "topics": topics, **settings}, MemberSettings
        )
        member = self.member_class(self.kafka.broker.bootstrap, chosen)
        member.start()
        self.members.append(member)
        return member

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition; a member that fails meanwhile fails the test."""

        def holds() -> bool:
            for member in self.members:
                member.check()
            return bool(condition())

        wait_until(holds, PATIENCE_S, what)

    def wait_shared(self, topic: str, partitions: int, *members: Member | ByTopic) -> None:
        """Wait until these members share the partitions, and each has some."""
        everything = {Place(topic, index) for index in range(partitions)}

        def shared() -> bool:
            owned = [place for member in members for place in set(member.assigned)]
            return (
                all(member.assigned for member in members)
                and len(owned) == partitions
                and set(owned) == everything
            )

        self.wait(shared, f"{len(members)} members share {topic}")

    def count(self) -> int:
        return sum(len(member.got) for member in self.members)

    def stored(self) -> Stored:
        with redis.Redis.from_url(self.kafka.broker.store_url) as store:
            key = keys.group(slot_of(self.group), self.group)
            fields = cast("dict[bytes, bytes]", store.hgetall(key.decode()))
        record = decode(fields[b"record"])
        if isinstance(record, GroupRecord):
            return Stored(record.generation_id, len(record.members))
        return Stored(record.generation_id, sum(name.startswith(b"m:") for name in fields))

    def committed(self, topic: str, partitions: int) -> dict[int, int]:
        with RawMember(coordinator_port(self.kafka.broker, self.group), self.group) as raw:
            found = fetch_offsets(raw, self.group, {topic: list(range(partitions))})
        return {partition: offset for (_, partition), offset in found.items()}

    def close(self) -> None:
        running = [member for member in self.members if member.is_alive()]
        for member in running:
            member.tell()
        for member in running:
            member.stop()


class Flow:
    """Records into all partitions of a topic, from a thread, until stopped."""

    def __init__(self, kafka: Session, topic: str, partitions: int) -> None:
        self.sent = 0
        self._kafka, self._topic, self._partitions = kafka, topic, partitions
        self._stopped = threading.Event()
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            producer = self._kafka.producer()
            while not self._stopped.is_set():
                records = [
                    Record(value=b"%d" % (self.sent + n), partition=n % self._partitions)
                    for n in range(10 * self._partitions)
                ]
                send_all(producer, self._topic, records)
                self.sent += len(records)
                time.sleep(0.02)
        except BaseException as fault:
            self._fault = fault

    def stop(self) -> int:
        """How many records there are."""
        self._stopped.set()
        self._thread.join(PATIENCE_S)
        if self._fault is not None:
            raise self._fault
        return self.sent


class OffsetWatch:
    """Committed offsets, looked at all the time: they never go back."""

    def __init__(self, broker: Broker, group: str, topic: str, partitions: int) -> None:
        self.looks = 0
        self.backwards: list[tuple[int, int, int]] = []
        self._wanted = {topic: list(range(partitions))}
        self._group = group
        self._port = coordinator_port(broker, group)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        last: dict[int, int] = {}
        with RawMember(self._port, self._group) as raw:
            while not self._stopped.is_set():
                for (_, index), offset in fetch_offsets(raw, self._group, self._wanted).items():
                    if offset < last.get(index, -1):
                        self.backwards.append((index, last[index], offset))
                    last[index] = offset
                self.looks += 1
                time.sleep(0.02)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE_S)
        assert self.looks > 1
        assert self.backwards == []


class GroupTests:
    @pytest.fixture
    def crew(self, kafka: Session, member_class: type[Member]) -> Iterator[Crew]:
        crew = Crew(kafka, member_class)
        with contextlib.closing(crew):
            yield crew

    def test_members_come_and_go_while_records_flow(self, crew: Crew, strategy: str) -> None:
        partitions = 6
        topic = crew.kafka.topic(partitions)
        flow = Flow(crew.kafka, topic, partitions)
        watch = OffsetWatch(crew.kafka.broker, crew.group, topic, partitions)
        try:
            first = crew.join([topic], strategy=strategy)
            crew.wait(lambda: first.got, "the first member reads")
            second = crew.join([topic], strategy=strategy)
            third = crew.join([topic], strategy=strategy)
            crew.wait_shared(topic, partitions, first, second, third)
            crew.wait(lambda: second.got and third.got, "the others read")
            first.stop()  # the leader
            crew.wait_shared(topic, partitions, second, third)
            third.stop()
            crew.wait_shared(topic, partitions, second)
        finally:
            sent = flow.stop()
        crew.wait(lambda: crew.count() >= sent, "everything was read")
        second.stop()
        watch.stop()

        times = Counter((got.place, got.offset) for member in crew.members for got in member.got)
        assert len(times) == sent
        assert set(times.values()) == {1}  # no crash: exactly once
        assert sum(crew.committed(topic, partitions).values()) == sent

    def test_a_new_member_goes_on_where_the_last_one_stopped(self, crew: Crew) -> None:
        topic = crew.kafka.topic(2)
        for first in (0, 20):
            crew.kafka.produce(topic, [Record(value=b"v", partition=n % 2) for n in range(20)])
            member = crew.join([topic])
            crew.wait(lambda member=member: len(member.got) == 20, "it reads")  # type: ignore[misc]
            member.stop()
            offsets = sorted(got.offset for got in member.got)
            assert offsets == sorted(2 * list(range(first // 2, first // 2 + 10)))

    def test_a_static_member_restarts_without_a_rebalance(self, crew: Crew) -> None:
        topic = crew.kafka.topic(4)
        stays = crew.join([topic], instance="stays")
        crew.wait(lambda: stays.assigned, "the first has joined")
        goes = crew.join([topic], instance="goes")
        crew.wait_shared(topic, 4, stays, goes)
        crew.wait(lambda: crew.stored().members == 2, "both are stored")
        generation, seen, had = crew.stored().generation_id, stays.assignments, set(goes.assigned)

        goes.stop()
        again = crew.join([topic], instance="goes")
        crew.wait(lambda: again.assigned, "it is back")

        assert again.assigned == had
        assert stays.assignments == seen
        assert crew.stored().generation_id == generation
        crew.kafka.produce(topic, [Record(value=b"v", partition=n % 4) for n in range(40)])
        crew.wait(lambda: crew.count() == 40, "both read on")
        assert crew.stored().generation_id == generation

    def test_a_pattern_finds_a_new_topic(self, crew: Crew) -> None:
        stem = crew.kafka.new_name()
        names = [f"{stem}-{index}" for index in range(3)]
        crew.kafka.admin.create_topics([NewTopic(names[0])])
        member = crew.join([], pattern=f"{stem}-.*")
        crew.wait(lambda: member.assigned == {Place(names[0])}, "the first topic")

        crew.kafka.admin.create_topics([NewTopic(names[1])])
        crew.wait(lambda: member.assigned == {Place(name) for name in names[:2]}, "the new one")
        crew.kafka.produce(names[1], [Record(value=b"found", partition=0)])

        crew.wait(lambda: member.got, "its record")
        assert [got.value for got in member.got] == [b"found"]

    def test_partitions_added_are_found(self, crew: Crew) -> None:
        topic = crew.kafka.topic(2)
        one = crew.join([topic])
        two = crew.join([topic])
        crew.wait_shared(topic, 2, one, two)

        assert crew.kafka.admin.create_partitions(topic, 6) == 0

        crew.wait_shared(topic, 6, one, two)
        crew.kafka.produce(topic, [Record(value=b"v", partition=n) for n in range(6)])
        crew.wait(lambda: crew.count() == 6, "all are read")

    def test_2_11_a_changed_subscription_is_followed(self, crew: Crew) -> None:
        old, new = crew.kafka.topic(2), crew.kafka.topic(2)
        of_old, of_new = ({Place(topic, index) for index in range(2)} for topic in (old, new))
        one, two = crew.join([old]), crew.join([old])
        crew.wait_shared(old, 2, one, two)
        generation = crew.stored().generation_id

        two.follow([old, new])
        crew.wait(lambda: of_new <= two.assigned, "the member that asks for the new topic gets it")
        crew.wait_shared(old, 2, one, ByTopic(two, old))
        one.follow([new])
        crew.wait(lambda: of_old <= two.assigned, "the member that is left has the old one alone")
        crew.wait_shared(new, 2, one, ByTopic(two, new))

        assert crew.stored().generation_id >= generation + 2
        crew.kafka.produce(old, [Record(value=b"v", partition=n) for n in range(2)])
        crew.kafka.produce(new, [Record(value=b"v", partition=n) for n in range(2)])
        crew.wait(lambda: crew.count() == 4, "all are read")
        assert {got.place.topic for got in one.got} == {new}


class ByTopic:
    """What a member has of one topic."""

    def __init__(self, member: Member, topic: str) -> None:
        self._member, self._topic = member, topic

    @property
    def assigned(self) -> set[Place]:
        return {place for place in set(self._member.assigned) if place.topic == self._topic}


class CooperativeTests:
    """Tests of clients that have cooperative-sticky."""

    @pytest.fixture
    def crew(self, kafka: Session, member_class: type[Member]) -> Iterator[Crew]:
        crew = Crew(kafka, member_class)
        with contextlib.closing(crew):
            yield crew

    def test_only_what_moves_is_revoked(self, crew: Crew) -> None:
        partitions = 6
        topic = crew.kafka.topic(partitions)
        flow = Flow(crew.kafka, topic, partitions)
        try:
            stays = crew.join([topic], strategy="cooperative-sticky")
            crew.wait_shared(topic, partitions, stays)
            joins = crew.join([topic], strategy="cooperative-sticky")
            crew.wait_shared(topic, partitions, stays, joins)
            moved = set(joins.assigned)
            assert set().union(*stays.revocations) == moved
            joins.stop()
            crew.wait_shared(topic, partitions, stays)
            # What came back was given; nothing else was touched.
            assert set().union(*stays.revocations) == moved
        finally:
            flow.stop()


class CooperativeReadingTests(CooperativeTests):
    """Tests of clients whose poll gives records while they wait for the others."""

    def test_what_does_not_move_is_read_during_a_rebalance(self, crew: Crew) -> None:
        partitions = 4
        topic = crew.kafka.topic(partitions)
        stays = crew.join([topic], strategy="cooperative-sticky")
        crew.wait_shared(topic, partitions, stays)
        with RawMember(coordinator_port(crew.kafka.broker, crew.group), crew.group) as pending:
            # A member that got its id and does not come back with it: no join completes.
            pending.protocols = {"cooperative-sticky": b""}
            pending.send_join()
            assert pending.receive_join().error_code == MEMBER_ID_REQUIRED
            joins = crew.join([topic], strategy="cooperative-sticky")
            crew.wait(lambda: state(pending) == "PreparingRebalance", "the rebalance has begun")
            crew.kafka.produce(topic, [Record(value=b"v", partition=n % 4) for n in range(40)])
            crew.wait(lambda: len(stays.got) == 40, "it reads on")
            assert state(pending) == "PreparingRebalance"
            assert stays.revocations == []
            pending.leave()
        crew.wait_shared(topic, partitions, stays, joins)

        assert set().union(*stays.revocations) == joins.assigned


def state(member: RawMember) -> str:
    return str(member.call(DescribeGroupsRequest([member.group])).groups[0].group_state)
