"""Random members, writes, leaders and logs: what a share group promises at any time.

The properties are P1 to P7 of `share_world`, checked after every step, and P3 at the end: with
members that go on fetching, every record ends accepted, rejected or archived, and the start reaches
the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from moldau.broker.share import states
from moldau.broker.share.limits import AcquireMode, ShareLimits
from tests.unit.share.share_world import ACQUIRED, World

LIMITS = ShareLimits(lock_ms=1_000, delivery_count=4, max_records=12)
MEMBERS = ("a", "b", "c")
members = st.sampled_from(MEMBERS)
outcomes = st.sampled_from(["done", "done", "done", "failed", "unknown"])


def drain(world: World) -> None:
    """P3: everything that was appended is dealt with in a bounded number of fetches."""
    world.limits = LIMITS
    world.wait(2 * LIMITS.lock_ms)
    for _ in range(10 * len(world.log.records()) + 50):
        world.begin_save()
        world.end_save("done")
        world.follow_log()
        if world.partition.start == world.log.end:
            break
        world.fetch("z", 100, AcquireMode.BATCH_OPTIMIZED, batches=100)
        for first, last in held_by(world, "z"):
            world.acknowledge("z", [(first, last, bytes((states.ACCEPT,)))])
        if world.partition.start == world.partition.end == last_record(world) + 1:
            break
    else:
        pytest.fail("records are left")
    assert set(world.log.records()) <= world.tried | world.given_up


def last_record(world: World) -> int:
    start = world.partition.end - 1
    return max([last for _, last, _ in world.log.batches] + [start])


def held_by(world: World, member: str) -> list[tuple[int, int]]:
    """What a member has, as ranges of consecutive offsets."""
    runs: list[tuple[int, int]] = []
    for offset, record in world.model.records.items():
        if record.state == ACQUIRED and record.lock is not None and record.lock.member == member:
            if runs and runs[-1][1] + 1 == offset:
                runs[-1] = (runs[-1][0], offset)
            else:
                runs.append((offset, offset))
    return runs


class ShareMembers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(LIMITS)

    # --- the log ---

    @rule(count=st.integers(1, 9), kind=st.sampled_from([True, True, True, False]))
    def append(self, count: int, kind: bool) -> None:
        self.world.log.append(count, is_delivered=kind)

    @rule(count=st.sampled_from([1, 3, 100_000]))
    def gap(self, count: int) -> None:
        self.world.log.skip(count)

    @rule(ahead=st.integers(0, 20))
    def trim(self, ahead: int) -> None:
        self.world.log.trim(self.world.log.start + ahead)

    @rule(index=st.integers(0, 30))
    def compact(self, index: int) -> None:
        self.world.log.compact(index)

    # --- members ---

    @rule(
        member=members,
        most=st.sampled_from([1, 2, 5, 500]),
        mode=st.sampled_from(AcquireMode),
        batches=st.integers(1, 4),
    )
    def fetch(self, member: str, most: int, mode: AcquireMode, batches: int) -> None:
        self.world.fetch(member, most, mode, batches)

    @rule(member=members, data=st.data())
    def acknowledge_what_it_has(self, member: str, data: st.DataObject) -> None:
        held = held_by(self.world, member)
        batches = []
        for first, last in held:
            if not data.draw(st.booleans()):
                continue
            begin = data.draw(st.integers(first, last))
            end = data.draw(st.integers(begin, last))
            size = end - begin + 1 if data.draw(st.booleans()) else 1
            kinds = st.sampled_from([0, 1, 1, 1, 2, 2, 3, 4])
            types = data.draw(st.lists(kinds, min_size=size, max_size=size))
            batches.append((begin, end, bytes(types)))
        if batches:
            self.world.acknowledge(member, batches)

    @rule(
        member=members,
        ranges=st.lists(
            st.tuples(st.integers(-3, 20), st.integers(-1, 6), st.sampled_from([1, 2, 3, 4])),
            min_size=1,
            max_size=3,
        ),
    )
    def acknowledge_anything(self, member: str, ranges: list[tuple[int, int, int]]) -> None:
        start = max(0, self.world.partition.start)
        self.world.acknowledge(
            member, [(start + at, start + at + more, bytes((kind,))) for at, more, kind in ranges]
        )

    @rule(member=members)
    def leave(self, member: str) -> None:
        self.world.leave(member)

    @rule(ms=st.sampled_from([1, 400, 1_000, 5_000]))
    def wait(self, ms: int) -> None:
        self.world.wait(ms)

    @rule(count=st.integers(2, 8), room=st.sampled_from([4, 12, 40]), renew=st.booleans())
    def change_limits(self, count: int, room: int, renew: bool) -> None:
        self.world.limits = LIMITS._replace(delivery_count=count, max_records=room, may_renew=renew)

    # --- writes and leaders ---

    @rule()
    def begin_save(self) -> None:
        self.world.begin_save()

    @rule(outcome=outcomes)
    def end_save(self, outcome: str) -> None:
        self.world.end_save(outcome)

    @rule(is_write_done=st.booleans())
    def die(self, is_write_done: bool) -> None:
        self.world.die(is_write_done=is_write_done)

    @rule()
    def fall_asleep(self) -> None:
        self.world.fall_asleep()

    @rule()
    def late_bytes(self) -> None:
        self.world.late_bytes_arrive()

    def teardown(self) -> None:
        drain(self.world)


TestShareMembers = ShareMembers.TestCase
TestShareMembers.settings = settings(
    max_examples=120,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("seed", range(60))
def test_a_long_life(seed: int) -> None:
    """Longer lives than hypothesis makes: mostly sane members, 400 steps."""
    rng = random.Random(seed)
    world = World(LIMITS)

    def append() -> None:
        world.log.append(rng.choice((1, 1, 3, 9)), is_delivered=rng.random() < 0.9)

    def fetch() -> None:
        mode = rng.choice(list(AcquireMode))
        world.fetch(rng.choice(MEMBERS), rng.choice((1, 3, 500)), mode, rng.randint(1, 4))

    def acknowledge() -> None:
        member = rng.choice(MEMBERS)
        batches = []
        for first, last in held_by(world, member):
            if rng.random() < 0.7:
                is_each = rng.random() < 0.5
                size = last - first + 1 if is_each else 1
                batches.append((first, last, bytes(rng.choices((1, 1, 2, 3, 4, 0), k=size))))
        if batches:
            world.acknowledge(member, batches)

    def save() -> None:
        world.begin_save()

    def saved() -> None:
        world.end_save(rng.choice(("done", "done", "done", "failed", "unknown")))

    def disturb() -> None:
        rng.choice(
            (
                lambda: world.log.skip(rng.choice((1, 5, 100_000))),
                lambda: world.log.trim(world.log.start + rng.randint(0, 10)),
                lambda: world.log.compact(rng.randint(0, 30)),
                lambda: world.die(is_write_done=rng.random() < 0.5),
                world.fall_asleep,
                world.late_bytes_arrive,
                lambda: world.leave(rng.choice(MEMBERS)),
                lambda: world.wait(rng.choice((1, 500, 1_200))),
            )
        )()

    steps: list[Callable[[], None]] = [append, fetch, fetch, acknowledge, acknowledge, save, saved]
    for _ in range(400):
        (disturb if rng.random() < 0.06 else rng.choice(steps))()
    drain(world)
    assert world.accepted
