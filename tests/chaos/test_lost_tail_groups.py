"""Groups on a store that comes back without its tail: no commit is lost while the owner lives, and
no generation comes twice even if it does not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from moldau.broker.errors import ErrorCode
from moldau.broker.group.group_base import LIMIT
from moldau.broker.group.record import decode
from moldau.broker.placement import slot_of
from moldau.broker.store import keys
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker, wait_until
from tests.support.clients.member_crew import PATIENCE_S, QUICK, produce
from tests.support.clients.members import (
    ConfluentConsumerMember,
    ConfluentMember,
    MemberSettings,
)
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.raw.group import (
    LOADING,
    NOT_AVAILABLE,
    RawMember,
    coordinator_port,
    fetch_offsets,
)
from tests.support.stores.lossy import programs
from tests.support.stores.stages import LOSSY, STAGES, Stage

Start = Callable[..., Broker]
TOPIC, GROUP, OTHER = "orders", "readers", "began-later"
MANY = 400
RETRIABLE = {0, LOADING, NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}


@pytest.fixture(params=LOSSY)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with STAGES[request.param](tmp_path, sorted(programs().values())[0]) as made:
        yield made


@pytest.fixture
def broker(start_moldau: Start, stage: Stage) -> Broker:
    started = start_moldau(redis=stage.url, workers=1, broker=QUICK)
    with RawClient(started.port) as client:
        create_topic(client, TOPIC)
    return started


def commit(member: RawMember, offset: int) -> None:
    """Commit as clients do: retriable errors are tried again, and no other comes."""

    def done() -> bool:
        code = member.commit(TOPIC, offset)
        assert code in RETRIABLE, code
        return code == 0

    wait_until(done, PATIENCE_S, f"{offset} is committed")


def again(broker: Broker, member: RawMember) -> RawMember:
    """The same member on a connection to the worker that owns its group now."""
    other = RawMember(
        coordinator_port(broker, member.group), member.group, member_id=member.member_id
    )
    other.generation = member.generation
    return other


def test_the_owner_lives(broker: Broker, stage: Stage) -> None:
    with (
        RawMember(coordinator_port(broker, GROUP), GROUP) as member,
        RawMember(coordinator_port(broker, OTHER), OTHER) as simple,
    ):
        member.enter()
        assert member.commit(TOPIC, 5) == 0
        stage.prepare()
        for offset in (6, 7):
            member.enter()
            assert member.commit(TOPIC, offset) == 0
        assert simple.commit(TOPIC, 3) == 0

        stage.strike()

        assert member.heartbeat() == 0, "no member notices"
        assert member.committed(TOPIC) == 7
        commit(simple, 4)
        wait_until(lambda: "written again" in broker.log(), PATIENCE_S, "the store has it again")
        broker.wait_restarted("worker", 0, broker.kill("worker"))
        with again(broker, member) as same, again(broker, simple) as other:
            assert same.committed(TOPIC) == 7
            assert same.heartbeat() == 0, "the same generation, without a rebalance"
            assert other.committed(TOPIC) == 4
            commit(same, 8)


def test_the_owner_dies_too(broker: Broker, stage: Stage) -> None:
    with RawMember(coordinator_port(broker, GROUP), GROUP) as member:
        member.enter()
        assert member.commit(TOPIC, 5) == 0
        stage.prepare()
        for _ in range(3):
            member.enter()
        seen = member.generation
        killed: list[int] = []

        stage.strike(while_down=lambda: killed.append(broker.kill("worker")))

        broker.wait_restarted("worker", 0, killed[0], PATIENCE_S)
        with again(broker, member) as same:
            assert same.committed(TOPIC) == 5
            assert same.heartbeat() == ErrorCode.ILLEGAL_GENERATION
            same.enter()
            assert same.generation > seen
            commit(same, 6)
            latest = same.generation
            broker.wait_restarted("worker", 0, broker.kill("worker"), PATIENCE_S)
            with again(broker, same) as last:
                assert last.committed(TOPIC) == 6
                assert last.heartbeat() == 0
                last.enter()
                assert last.generation == latest + 1


@pytest.mark.parametrize("stage", ["lagging"], indirect=True)
def test_the_owner_is_stopped_while_it_writes_them_again(
    broker: Broker, stage: Stage, start_moldau: Start
) -> None:
    """SIGTERM right after the store is back: nothing else has the commits that it lost."""
    groups = [f"stopped-{number}" for number in range(MANY)]
    with RawMember(coordinator_port(broker, GROUP), GROUP) as member:
        for group in groups:
            member.group = group
            commit(member, 1)
        stage.prepare()
        for group in groups:
            member.group = group
            assert member.commit(TOPIC, 2) == 0

        stage.strike()

        back = "store connection moldau-0-groups is back"
        wait_until(lambda: back in broker.log(), PATIENCE_S, "the store is back")
    assert broker.stop() == 0
    restarted = start_moldau(redis=stage.url, workers=1, broker=QUICK)
    with RawMember(coordinator_port(restarted, GROUP), GROUP) as member:
        found = {group: fetch_offsets(member, group, {TOPIC: [0]})[TOPIC, 0] for group in groups}
    assert found == dict.fromkeys(groups, 2)


def stored_generation(stage: Stage) -> int:
    with redis.Redis.from_url(stage.url) as store:
        record = store.hget(keys.group(slot_of(GROUP), GROUP).decode(), "record")
    assert isinstance(record, bytes)
    return decode(record).generation_id


def committed(broker: Broker) -> int:
    with RawMember(coordinator_port(broker, GROUP), GROUP) as member:
        return member.committed(TOPIC)


@pytest.mark.parametrize("stage", ["cut"], indirect=True)
@pytest.mark.parametrize("kind", [ConfluentConsumerMember, ConfluentMember])
def test_librdkafka_goes_on_after_the_owner_died_too(
    broker: Broker, stage: Stage, kind: type[ConfluentMember]
) -> None:
    """Its member has seen epochs that the store has lost. The next one is higher, and one
    that librdkafka can read."""
    settings = MemberSettings(group=GROUP, topics=[TOPIC], strategy="range")
    member, other, last = (kind(broker.bootstrap, settings) for _ in range(3))
    with contextlib.ExitStack() as stack:
        member.start()
        stack.callback(member.stop)
        produce(broker, TOPIC, 1, 1, 0)
        wait_until(lambda: committed(broker) == 1, PATIENCE_S, "it has committed")
        stage.prepare()
        first = stored_generation(stage)
        other.start()
        wait_until(lambda: stored_generation(stage) > first, PATIENCE_S, "another one joins")
        other.stop()
        wait_until(lambda: stored_generation(stage) > first + 1, PATIENCE_S, "it leaves")
        produce(broker, TOPIC, 1, 1, 0)
        wait_until(lambda: committed(broker) == 2, PATIENCE_S, "it has committed again")
        seen = stored_generation(stage)
        killed: list[int] = []

        stage.strike(while_down=lambda: killed.append(broker.kill("worker")))

        broker.wait_restarted("worker", 0, killed[0], PATIENCE_S)
        last.start()
        stack.callback(last.stop)
        wait_until(lambda: seen < stored_generation(stage), PATIENCE_S, "another one joins")
        assert stored_generation(stage) < LIMIT
        produce(broker, TOPIC, 1, 1, 0)
        wait_until(lambda: committed(broker) > 2, PATIENCE_S, "it reads and commits")

        def is_stable() -> bool:
            (shown,) = Cli(broker).json("groups", "describe", GROUP)["groups"]
            return (shown["state"], len(shown["members"])) == ("Stable", 2)

        wait_until(is_stable, PATIENCE_S, "the group has come to rest")
