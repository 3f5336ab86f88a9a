"""A member of a group is killed, or stopped and continued: real clients in processes of their own.

Whatever happens to one, the other has its partitions once the session timeout is over.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.clients.member_crew import PATIENCE_S, QUICK, Crew, produce
from tests.support.clients.member_process import CLIENTS, LateCommits
from tests.support.clients.members import REBALANCING, KafkaPythonMember, MemberSettings
from tests.support.compat.grouping import OffsetWatch
from tests.support.drivers.subscriptions import subscription
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.raw.group import RawMember, coordinator_port, fetch_offsets

PARTITIONS = 4
HELD_SESSION_MS = 10_000  # longer than a starved machine holds a heartbeat back
Process = subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def moldau() -> Iterator[Broker]:
    with running_broker(broker=QUICK) as broker:
        yield broker


class Pair:
    """Two members of one kind that share a topic, and what the coordinator knows of them."""

    def __init__(self, broker: Broker, directory: Path, client: str) -> None:
        self._broker = broker
        self.group = self.topic = f"{client}-{uuid.uuid4().hex[:12]}"
        self.sent = 0
        with RawClient(broker.port) as admin:
            create_topic(admin, self.topic, partitions=PARTITIONS)
        self.coordinator = RawMember(coordinator_port(broker, self.group), self.group)
        self.crew = Crew(directory, broker, self.group, self.topic)
        self.victim = self.crew.start(client)
        self.other = self.crew.start(client)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, PATIENCE_S, f"{what}: {self.crew.errors()}")

    def member_ids(self) -> set[str]:
        """The ids of the members of a Stable group."""
        group = described(self.coordinator, self.group)
        if group.group_state != "Stable":
            return set()
        return {member.member_id for member in group.members}

    def send(self) -> None:
        """A record into each partition."""
        produce(self._broker, self.topic, PARTITIONS, PARTITIONS, 0)
        self.sent += 1

    def wait_shared(self) -> None:
        self.wait(lambda: len(self.member_ids()) == 2, "both are members")
        seen = {process: len(self.crew.read_by(process)) for process in self.crew.processes}
        self.send()
        self.wait(
            lambda: all(len(self.crew.read_by(process)) > seen[process] for process in seen),
            "both read",
        )

    def wait_moved(self) -> None:
        """Wait until the other one is alone and reads all partitions."""
        self.wait(lambda: len(self.member_ids()) == 1, "the session is over")
        self.send()
        newest = {(partition, self.sent - 1) for partition in range(PARTITIONS)}
        self.wait(
            lambda: newest <= set(self.crew.read_by(self.other)), "the other one reads everything"
        )

    def committed(self) -> dict[int, int]:
        wanted = {self.topic: list(range(PARTITIONS))}
        found = fetch_offsets(self.coordinator, self.group, wanted)
        return {partition: offset for (_, partition), offset in found.items()}

    def wait_committed(self) -> None:
        everything = dict.fromkeys(range(PARTITIONS), self.sent)
        self.wait(lambda: self.committed() == everything, "everything is committed")

    def has_uncommitted(self, process: Process) -> bool:
        read = self.crew.read_by(process)
        committed = self.committed()
        return any(offset >= committed[partition] for partition, offset in read)

    def close(self) -> None:
        self.crew.close()
        self.coordinator.close()


@pytest.fixture(params=sorted(CLIENTS))
def pair(moldau: Broker, short_tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    with contextlib.closing(Pair(moldau, short_tmp_path, str(request.param))) as pair:
        pair.wait_shared()
        yield pair


def test_2_19_a_killed_members_partitions_move(pair: Pair, moldau: Broker) -> None:
    before = pair.member_ids()

    pair.victim.kill()
    pair.wait_moved()

    (gone,) = before - pair.member_ids()
    assert f"group {pair.group}: Stable -> PreparingRebalance" in moldau.log()
    assert f"session of member {gone} expired" in moldau.log()  # it did not leave
    pair.wait_committed()


def test_2_19_a_stopped_member_is_expelled_and_comes_back_without_its_old_commit(
    pair: Pair, moldau: Broker
) -> None:
    before = pair.member_ids()
    watch = OffsetWatch(moldau, pair.group, pair.topic, PARTITIONS)
    try:
        stop_before_its_commit(pair)
        pair.wait_moved()
        pair.wait_committed()
        moved = pair.committed()
        (gone,) = before - pair.member_ids()

        pair.victim.send_signal(signal.SIGCONT)

        pair.wait(
            lambda: "not committed" in pair.crew.errors_of(pair.victim), "its commit is refused"
        )
        pair.wait(lambda: len(pair.member_ids()) == 2, "it is a member again")
        assert gone not in pair.member_ids()
        assert pair.committed() == moved
        pair.wait_shared()
        pair.wait_committed()
    finally:
        watch.stop()  # committed offsets never went back


def test_2_19_a_poll_that_ends_during_a_join_costs_kafka_python_no_membership(
    moldau: Broker,
) -> None:
    """Its join is parked when the poll ends and a commit is due: the member must poll again, since
    it sends no heartbeats until then. Apache Kafka 4.3 sees the same requests and answers alike."""
    topic = group = f"held-{uuid.uuid4().hex[:12]}"
    with RawClient(moldau.port) as admin:
        create_topic(admin, topic, partitions=PARTITIONS)
    member = KafkaPythonMember(
        moldau.bootstrap, MemberSettings(group=group, topics=[topic], session_ms=HELD_SESSION_MS)
    )
    member.poll_s = 0.5
    commits = LateCommits(member)
    protocols = {"range": subscription(topic)}
    port = coordinator_port(moldau, group)
    with contextlib.ExitStack() as stack:
        member.start()
        stack.callback(member.stop)
        wait_until(lambda: bool(member.assigned), PATIENCE_S, "it has partitions")
        slow, late = (
            stack.enter_context(RawMember(port, group, protocols=protocols)) for _ in range(2)
        )
        assert slow.join().error_code == 0
        assert slow.sync().error_code == 0
        before = {one.member_id for one in described(slow, group).members}
        (watched,) = before - {slow.member_id}
        produce(moldau, topic, PARTITIONS, PARTITIONS, 0)

        def has_read() -> bool:
            if slow.heartbeat() == REBALANCING:  # as leader the other one may join once more
                assert slow.join().error_code == 0
                assert slow.sync().error_code == 0
            return bool(member.got)

        # Its session must not end meanwhile, however long that takes.
        wait_until(has_read, PATIENCE_S, "it has something to commit")
        state = member._consumer._coordinator

        late.send_join()
        late.receive_join()
        late.send_join()  # parked until both others join
        wait_until(lambda: slow.heartbeat() == REBALANCING, PATIENCE_S, "it rebalances")
        wait_until(state.rebalance_in_progress, PATIENCE_S, "its join is parked")
        commits.commit()
        wait_until(lambda: member.owes_commit, PATIENCE_S, "its commit is put off")
        slow.send_join()
        assert slow.receive_join().error_code == late.receive_join().error_code == 0
        assert late.joined.leader == watched
        follow_rebalance([slow, late], watched)

        def kept() -> bool:
            if slow.heartbeat() == REBALANCING:  # as leader it may join once more
                for one in (slow, late):
                    one.send_join()
                for one in (slow, late):
                    one.receive_join()
                follow_rebalance([slow, late], watched)
            return not member.owes_commit and bool(member.assigned)

        wait_until(kept, PATIENCE_S, "it has committed")
        assert watched in {one.member_id for one in described(slow, group).members}
        assert f"session of member {watched} expired" not in moldau.log()


def follow_rebalance(members: list[RawMember], leader: str) -> None:
    for one in members:
        assert one.joined.leader == leader, "its session has ended"
        one.send_sync()
    for one in members:
        assert one.receive().error_code in (0, REBALANCING)


def described(client: RawMember, group: str) -> Any:
    (found,) = client.call(DescribeGroupsRequest([group])).groups
    return found


def stop_before_its_commit(pair: Pair) -> None:
    """It has read something, and would commit it next."""
    pair.victim.send_signal(signal.SIGUSR1)
    pair.send()
    stat = Path(f"/proc/{pair.victim.pid}/stat")
    pair.wait(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")
    assert pair.has_uncommitted(pair.victim)
