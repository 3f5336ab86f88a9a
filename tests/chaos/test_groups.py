"""Groups while processes die: members, the worker that owns the group, everything."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from moldau.broker.group.record import GroupRecord, decode
from moldau.broker.placement import owner_of, slot_of
from moldau.broker.store import keys
from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from tests.support.brokers.running import ROOT, Broker, clean_environment, wait_until
from tests.support.clients.member_crew import PATIENCE_S, QUICK, SESSION_MS, Crew, produce
from tests.support.compat.grouping import OffsetWatch
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.raw.group import LOADING, RawMember, coordinator_port, fetch_offsets, form_group

FENCED = {22, 25}  # ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID

Start = Callable[..., Broker]


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


def test_6_5_members_are_killed_while_records_flow(
    start_moldau: Start, short_tmp_path: Path
) -> None:
    """Three kinds of clients in one group, 100,000 records: nothing is lost."""
    broker = start_moldau(workers=2, broker=QUICK)
    group, topic, count, partitions = "flow", "records", 100_000, 6
    with RawClient(broker.port) as client:
        create_topic(client, topic, partitions=partitions)
    writer = threading.Thread(target=produce, args=(broker, topic, count, partitions, 10.0))
    watch = OffsetWatch(broker, group, topic, partitions)
    with contextlib.closing(Crew(short_tmp_path, broker, group, topic)) as crew:
        writer.start()
        victims = [crew.start(name) for name in ("confluent", "kafka_python", "aiokafka")]
        for number, victim in enumerate(victims):
            # Killed in the middle of its work, one after the other; another one takes its place.
            already = len(crew.read_by(victim))
            wait_until(
                lambda victim=victim, already=already: len(crew.read_by(victim)) > already,  # type: ignore[misc]
                PATIENCE_S,
                f"member {number} reads: {crew.errors()}",
            )
            victim.kill()
            crew.start(("aiokafka", "confluent", "confluent")[number])
        writer.join()
        wait_until(
            lambda: len(crew.read()) == count, PATIENCE_S, f"everything is read: {crew.errors()}"
        )
        watch_until_committed(broker, group, topic, partitions, count)
        watch.stop()

        assert crew.read() == {
            (partition, offset)
            for partition in range(partitions)
            for offset in range(len(range(partition, count, partitions)))
        }
        repeated = sum(len(crew.read_by(process)) for process in crew.processes) - count
        assert repeated > 0  # else no member was killed in the middle of anything
        print(f"{count:,} records, three members killed: {repeated:,} read twice")


def watch_until_committed(
    broker: Broker, group: str, topic: str, partitions: int, count: int
) -> None:
    with RawMember(coordinator_port(broker, group), group) as raw:
        wait_until(
            lambda: (
                sum(fetch_offsets(raw, group, {topic: list(range(partitions))}).values()) == count
            ),
            PATIENCE_S,
            "everything is committed",
        )


@pytest.fixture
def zombie(start_moldau: Start, group: str) -> Iterator[tuple[Broker, subprocess.Popen[str]]]:
    broker = start_moldau(workers=1, broker=QUICK)
    with RawClient(broker.port) as client:
        create_topic(client, "orders")
    words = ["raw", str(coordinator_port(broker, group)), group, "orders", str(SESSION_MS)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.clients.member_process", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=clean_environment(),
    )
    yield broker, process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_zombie_cannot_commit(
    zombie: tuple[Broker, subprocess.Popen[str]], group: str, taken_over: bool
) -> None:
    broker, process = zombie
    assert process.stdin is not None
    assert process.stdout is not None

    def commit(offset: int) -> None:
        assert process.stdin is not None
        process.stdin.write(f"{offset}\n")
        process.stdin.flush()

    assert process.stdout.readline() == "joined 1\n"
    commit(5)
    assert process.stdout.readline() == "0\n"

    process.send_signal(signal.SIGSTOP)
    with RawMember(coordinator_port(broker, group), group) as other:
        wait_until(lambda: state(other) == "Empty", PATIENCE_S, "its session is over")
        if taken_over:
            other.enter()
            assert other.commit("orders", 9) == 0
        commit(6)
        process.send_signal(signal.SIGCONT)

        assert int(process.stdout.readline()) in FENCED
        assert other.committed("orders") == (9 if taken_over else 5)


def state(client: RawMember) -> str:
    return str(client.call(DescribeGroupsRequest([client.group])).groups[0].group_state)


def stored(broker: Broker, group: str) -> GroupRecord:
    with redis.Redis.from_url(broker.store_url) as store:
        data = store.hget(keys.group(slot_of(group), group).decode(), "record")
    assert isinstance(data, bytes)
    record = decode(data)
    assert isinstance(record, GroupRecord)
    return record


def rejoined(member: RawMember) -> RawMember:
    """The same member on a new connection, as a client that reconnects."""
    member.close()
    again = RawMember(member.port, member.group, member_id=member.member_id)
    again.generation = member.generation
    return again


def test_2_26_the_owner_is_killed_under_100_members(
    start_moldau: Start, group: str, record_property: Callable[[str, object], None]
) -> None:
    broker = start_moldau(workers=2, broker=QUICK)
    with RawClient(broker.port) as client:
        create_topic(client, "orders")
    with contextlib.ExitStack() as stack:
        port = coordinator_port(broker, group)
        members: list[RawMember] = []
        stack.callback(close_all, members)  # those that are in it then
        members += [RawMember(port, group) for _ in range(100)]
        form_group(members)
        assert members[0].commit("orders", 77) == 0
        before = stored(broker, group)
        changes = broker.log().count(f"group {group}:")

        began = time.monotonic()
        broker.kill("worker", owner_of(group, 2))
        wait_until(lambda: reconnected(members), PATIENCE_S, "the worker is back")
        codes = [member.heartbeat() for member in members]
        seconds = time.monotonic() - began

        assert set(codes) == {0}
        # While it loads it says 0 to everybody: ask once more when it has.
        wait_until(lambda: members[0].committed("orders") == 77, PATIENCE_S, "its offsets are back")
        assert {member.heartbeat() for member in members} == {0}
        for number, member in enumerate(members):
            answer = member.sync()
            assert (answer.error_code, bytes(answer.assignment)) == (0, b"%d" % number)
        assert members[0].commit("orders", 78) == 0
        assert state(members[0]) == "Stable"
        assert stored(broker, group) == before
        assert broker.log().count(f"group {group}:") == changes  # nothing happened to it
        record_property("seconds_until_all_heartbeats_succeed", round(seconds, 2))
        print(f"100 members heartbeat again after {seconds:.2f} s")


def close_all(members: list[RawMember]) -> None:
    for member in members:
        member.close()


def reconnected(members: list[RawMember]) -> bool:
    try:
        for index, member in enumerate(members):
            members[index] = rejoined(member)
            members[index].heartbeat()
    except OSError:
        return False
    return True


def test_2_26_everything_is_killed(start_moldau: Start, group: str) -> None:
    broker = start_moldau(workers=2, broker=QUICK)
    with RawClient(broker.port) as client:
        create_topic(client, "orders", partitions=2)
    with contextlib.ExitStack() as stack:
        port = coordinator_port(broker, group)
        members = [stack.enter_context(RawMember(port, group)) for _ in range(5)]
        members[0].instance = "static"
        form_group(members)
        for partition in (0, 1):
            code = members[0].commit("orders", 40 + partition, partition=partition, metadata="m")
            assert code == 0
        before = stored(broker, group)
        assert before.generation_id == members[0].generation

        pids = [process["pid"] for process in broker.status()["processes"]]
        broker.remember_members()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        broker.process.wait(30)
        again = start_moldau(workers=2, port=broker.port, data_dir=broker.data_dir, broker=QUICK)

        assert stored(again, group) == before
        members = [stack.enter_context(rejoined(member)) for member in members]
        members[0].instance = "static"
        found = fetch_offsets(members[0], group, {"orders": [0, 1]})
        assert found == {("orders", 0): 40, ("orders", 1): 41}
        assert [member.heartbeat() for member in members] == [0] * 5
        (described,) = members[0].call(DescribeGroupsRequest([group])).groups
        assert described.error_code != LOADING
        assert {item.member_id for item in described.members} == {m.member_id for m in members}
        assert described.group_state == "Stable"
        for number, member in enumerate(members):
            answer = member.sync()
            assert (answer.error_code, bytes(answer.assignment)) == (0, b"%d" % number)
        assert stored(again, group) == before
