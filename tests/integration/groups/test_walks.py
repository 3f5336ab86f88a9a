"""How many modules a request of a group or of a transaction passes, through the router.

A reader has to open them all, so there must be few: merging what belongs together lowers these
numbers, and a new layer raises them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from moldau.broker.placement import leader_of
from tests.support.brokers import walks
from tests.support.brokers.routed import name, new_topic, owned_by
from tests.support.brokers.running import Broker, running_broker, short_temp_dir
from tests.support.raw.consumers import RawConsumer
from tests.support.raw.group import RawMember
from tests.support.raw.transactions import RawProducer

FIRST_WITHOUT_MEMBER_ID = 3
SETTLES_S = 0.2  # writes and group events that follow a reply


class Traced(NamedTuple):
    broker: Broker
    reports: Path
    topic: str

    @property
    def direct(self) -> int:
        """The port of the first worker."""
        return int(self.broker.processes("worker")[0]["port"])


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    reports = short_temp_dir()
    settings = {"group.initial.rebalance.delay.ms": 0}
    env = walks.environment(reports)
    with running_broker(workers=2, advertise="router", env=env, broker=settings) as broker:
        yield Traced(broker, reports, new_topic(broker))


def test_join_group(traced: Traced) -> None:
    """The first member of a new group; its connection to the worker is open."""
    members: list[RawMember] = []

    def connect() -> None:
        members.append(RawMember(traced.broker.port, name()))
        members[-1].heartbeat()

    def join() -> None:
        assert members[-1].join(FIRST_WITHOUT_MEMBER_ID).error_code == 0

    walks.hold(walks.walk(traced.broker, traced.reports, join, before=connect), at_most=36)


def test_transactional_commit(traced: Traced) -> None:
    """EndTxn, and the markers: one in a log of the coordinator's own worker, one in another's."""
    transactional_id = owned_by(0)
    leaders = {leader_of(traced.topic, number, 2): number for number in range(4)}
    with RawProducer(traced.broker, transactional_id) as producer:
        producer.begin()

        def write() -> None:
            for partition in leaders.values():
                producer.write(traced.topic, b"value", partition=partition)

        def commit() -> None:
            producer.finish(commit=True)
            time.sleep(SETTLES_S)

        walk = walks.walk(traced.broker, traced.reports, commit, before=write)
    walks.hold(walk, at_most=52)


def consumer(traced: Traced) -> RawConsumer:
    member = RawConsumer(traced.direct, owned_by(0))
    member.heartbeat(1)  # its connection is open
    return member


def test_consumer_joins(traced: Traced) -> None:
    """The first member of a new group, which gets its partitions."""
    members: list[RawConsumer] = []

    def join() -> None:
        assert members[-1].join(traced.topic).error_code == 0

    def connect() -> None:
        members.append(consumer(traced))

    walks.hold(walks.walk(traced.broker, traced.reports, join, before=connect), at_most=43)


def test_consumer_takes_a_step(traced: Traced) -> None:
    """Another member has joined: the first one hears that it has to give partitions back."""
    members: list[RawConsumer] = []

    def connect() -> None:
        first = consumer(traced)
        first.join(traced.topic)
        time.sleep(SETTLES_S)
        first.tell()
        first.beat()
        second = RawConsumer(traced.direct, first.group)
        second.join(traced.topic)
        time.sleep(1 + SETTLES_S)  # a target is computed once a second
        members[:] = [first, second]

    def beat() -> None:
        answer = members[0].beat()
        assert answer.assignment is not None, answer

    walks.hold(walks.walk(traced.broker, traced.reports, beat, before=connect), at_most=31)


def test_consumer_at_rest(traced: Traced) -> None:
    """A member that has all its partitions, and says nothing new."""
    members: list[RawConsumer] = []

    def connect() -> None:
        members.append(consumer(traced))
        members[-1].join(traced.topic)
        time.sleep(SETTLES_S)
        members[-1].tell()
        members[-1].beat()
        members[-1].beat()

    def beat() -> None:
        assert members[-1].beat().error_code == 0

    walks.hold(walks.walk(traced.broker, traced.reports, beat, before=connect), at_most=9)
