"""Groups of the consumer protocol while processes die and the store fails: which codes members see.

To clients nearly every error of a heartbeat is the end (`SURVIVED` are the others).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from moldau.broker.placement import owner_of
from moldau.broker.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tests.support.brokers.running import (
    ROOT,
    Broker,
    clean_environment,
    running_broker,
    wait_until,
)
from tests.support.clients.base import Place, Record
from tests.support.clients.confluent import Confluent
from tests.support.clients.members import ConfluentConsumerMember, MemberSettings
from tests.support.compat.session import Session
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.raw.consumers import SURVIVED, RawConsumer
from tests.support.raw.group import coordinator_port

TOPIC, PARTITIONS = "records", 6
QUICK = {
    "group.consumer.min.heartbeat.interval.ms": 300,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.assignment.interval.ms": 200,
}
FATAL_S = 20.0
DEFECTIVE = ROOT / "tests/chaos/defective"


class Watched:
    """Raw members that go on heartbeating through everything, and what they saw."""

    def __init__(self, broker: Broker, group: str, count: int) -> None:
        self.broker = broker
        self.group = group
        self.members: list[RawConsumer | None] = [None] * count
        self.broken: list[RawConsumer | None] = [None] * count
        """Those whose connection broke."""
        self.codes: set[int] = set()

    def round(self) -> bool:
        """One heartbeat each, on a new connection where the old one broke; True: all were fine."""
        outcomes = [self._beat(at) for at in range(len(self.members))]
        return all(outcomes)

    def _beat(self, at: int) -> bool:
        member = self.members[at]
        try:
            if member is None:
                port = coordinator_port(self.broker, self.group)
                member = RawConsumer(port, self.group, timeout=FATAL_S)
                before = self.broken[at]
                if before is not None:
                    member.resume(before)
                self.members[at] = member
            answer = member.tell() if member.epoch > 0 else member.join(TOPIC)
        except (OSError, AssertionError):
            if member is not None:
                member.close()
                self.members[at], self.broken[at] = None, member
            return False
        self.codes.add(answer.error_code)
        if answer.error_code in (25, 110):
            member.epoch = 0
        return bool(answer.error_code == 0)

    def settle(self, epoch: int | None = None) -> None:
        def rests() -> bool:
            if not self.round():
                return False
            epochs = {one.epoch for one in self.members if one is not None}
            owned = [place for one in self.members if one is not None for place in one.places]
            return (
                len(epochs) == 1
                and all(one is not None and one.places for one in self.members)
                and len(owned) == len(set(owned)) == PARTITIONS
                and (epoch is None or epochs == {epoch})
            )

        wait_until(rests, 60, f"the group is at rest, codes {self.codes}")

    @property
    def epoch(self) -> int:
        assert self.members[0] is not None
        return self.members[0].epoch

    def close(self) -> None:
        for member in self.members:
            if member is not None:
                member.close()


@pytest.fixture(scope="module")
def defect(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file exists, what it names raises exceptions (tests/chaos/defective)."""
    return tmp_path_factory.mktemp("defects") / "defect"


@pytest.fixture(scope="module")
def broker(_as_in_production: None, defect: Path) -> Iterator[Broker]:
    path = os.pathsep.join((str(DEFECTIVE), clean_environment()["PYTHONPATH"]))
    environment = {"PYTHONPATH": path, "DEFECT": str(defect)}
    with running_broker(
        unsaid=(), workers=2, broker=QUICK, env=environment, spare_process=None
    ) as broker:
        with RawClient(broker.port) as client:
            create_topic(client, TOPIC, partitions=PARTITIONS)
        yield broker


@pytest.fixture
def group() -> str:
    return f"survivors-{secrets.token_hex(4)}"


@pytest.fixture
def watched(broker: Broker, group: str) -> Iterator[Watched]:
    with contextlib.closing(Watched(broker, group, 3)) as watched:
        watched.settle()
        yield watched


def test_8_35_a_killed_owner_raises_no_epoch(broker: Broker, watched: Watched) -> None:
    epoch = watched.epoch
    for _ in range(2):
        broker.kill("worker", owner_of(watched.group, 2))
        killed = time.monotonic()
        wait_until(watched.round, 30, "heartbeats are answered again")
        print(f"a killed owner: heartbeats again after {time.monotonic() - killed:.2f} s")
        watched.settle(epoch)
    assert watched.codes <= {0, 14, 15, 16}


@pytest.mark.parametrize("fault", ["full", "refused", "slow", "killed"])
def test_8_36_what_members_see_of_a_store_that_fails(
    broker: Broker, watched: Watched, group: str, fault: str
) -> None:
    """Heartbeats at rest go on; a change waits, with codes that clients survive."""
    epoch = watched.epoch
    with ExitStack() as stack:
        store = stack.enter_context(redis.Redis.from_url(broker.store_url))
        joining = stack.enter_context(
            contextlib.closing(RawConsumer(coordinator_port(broker, group), group, timeout=FATAL_S))
        )
        _begin(broker, store, fault)
        began = time.monotonic()
        while time.monotonic() - began < 4:
            watched.round()
            with contextlib.suppress(OSError):
                joining.join(TOPIC) if joining.epoch <= 0 else joining.tell()
            time.sleep(0.1)
        _end(store, fault)
    assert set(joining.codes) <= SURVIVED - {25, 110}
    watched.members.append(None)
    watched.broken.append(joining)
    watched.settle()
    assert watched.codes <= {0, 14, 15, 16}, watched.codes
    print(f"{fault}: members saw {sorted(watched.codes)}, a joiner {sorted(set(joining.codes))}")
    with RawClient(broker.port) as client:
        (shown,) = client.call(ConsumerGroupDescribeRequest([group])).groups
    assert shown.group_epoch == epoch + 1  # the join, once


def _begin(broker: Broker, store: redis.Redis, fault: str) -> None:
    match fault:
        case "full":
            store.config_set("maxmemory", 1)
        case "refused":
            store.config_set("min-replicas-to-write", 1)
        case "slow":
            store.client_pause(3_000, all=False)
        case "killed":
            broker.kill("store")


def _end(store: redis.Redis, fault: str) -> None:
    match fault:
        case "full":
            store.config_set("maxmemory", 0)
        case "refused":
            store.config_set("min-replicas-to-write", 0)


@pytest.mark.parametrize("part", ["machine", "assignor", "computing", "encoding", "answer"])
def test_8_36_what_members_see_of_an_exception(
    broker: Broker, watched: Watched, group: str, defect: Path, part: str
) -> None:
    """A defect of ours, in the middle of a change: members at rest go on, a joiner survives, the
    group is as it was stored, and other groups of the worker do not notice."""
    epoch = watched.epoch
    other = next(name for name in map(f"{group}-{{}}".format, range(99)) if _meets(name, group))
    with ExitStack() as stack:
        port = coordinator_port(broker, group)

        def member(name: str) -> RawConsumer:
            made = RawConsumer(port, name, timeout=FATAL_S)
            stack.callback(made.close)
            return made

        beside, joining = member(other), member(group)
        assert beside.join(TOPIC).error_code == 0
        defect.write_text(part)
        closed = 0
        for _ in range(20):
            watched.round()
            assert beside.beat().error_code == 0
            try:
                joining.join(TOPIC) if joining.epoch <= 0 else joining.tell()
            except (OSError, AssertionError):
                closed += 1
                before, joining = joining, member(group)
                joining.resume(before)
            time.sleep(0.1)
        if part in ("assignor", "computing"):
            assert not joining.places  # without a new target it may join, and gets nothing yet
        else:
            assert joining.epoch <= 0
        defect.unlink()
    assert set(joining.codes) <= SURVIVED - {25, 110}
    watched.members.append(None)
    watched.broken.append(joining)
    watched.settle()
    print(
        f"{part}: members saw {sorted(watched.codes)}, a joiner {sorted(set(joining.codes))} "
        f"and {closed} closed connections"
    )
    assert watched.codes <= {0, 14, 15, 16}, watched.codes
    with RawClient(broker.port) as client:
        (shown,) = client.call(ConsumerGroupDescribeRequest([group])).groups
    assert shown.group_epoch == epoch + 1  # the join, once
    assert "Traceback" in broker.log()
    assert f"group {group}" in broker.log()


def _meets(other: str, group: str) -> bool:
    return owner_of(other, 2) == owner_of(group, 2)


@pytest.mark.slow
def test_8_35_8_36_a_storm_of_kills_under_load(broker: Broker, group: str) -> None:
    """Workers and the store die by turns; no client ends, and every record is read."""
    session = Session(Confluent(), broker)
    members = [
        ConfluentConsumerMember(broker.bootstrap, MemberSettings(group=group, topics=[TOPIC]))
        for _ in range(3)
    ]
    with contextlib.closing(session):
        for member in members:
            member.start()
        everything = {Place(TOPIC, number) for number in range(PARTITIONS)}

        def shared() -> bool:
            for member in members:
                member.check()
            owned = [place for member in members for place in set(member.assigned)]
            return len(owned) == PARTITIONS and set(owned) == everything

        wait_until(shared, 60, "they share the topic")
        sent = 0
        for turn in range(9):
            batch = [Record(value=b"v", partition=number % PARTITIONS) for number in range(600)]
            session.produce(TOPIC, batch)
            sent += len(batch)
            if turn % 3 == 2:
                broker.kill("store")
            else:
                broker.kill("worker", turn % 2)
            wait_until(
                lambda sent=sent: (  # type: ignore[misc]
                    len({(one.place, one.offset) for m in members for one in m.got}) >= sent
                ),
                90,
                "everything is read",
            )
            wait_until(shared, 60, "they share the topic again")
        for member in members:
            member.stop()
