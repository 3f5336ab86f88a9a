"""An exception inside a group, on a real store: who is answered what, and what is left of it.

With whole processes: tests/chaos/test_consumer_protocol.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moldau.broker import expressions
from moldau.broker.coordinator.runtime import recovery
from moldau.broker.group.assign.assignors import ASSIGNORS
from moldau.broker.group.classic import sync
from moldau.broker.group.classic.group_data import GroupData
from moldau.broker.group.modern.group import ConsumerGroup
from moldau.broker.group.modern.group_data import ConsumerGroupData
from tests.support.drivers.group_shell import Shell, shell, until
from tests.support.stores.redis_server import RedisServer

LOADING, NOT_AVAILABLE = 14, 15
TOPICS = {"t": 4, "u": 2}


class Defect(Exception):
    pass


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "PAUSE_S", 0.01)


def breaks(patch: pytest.MonkeyPatch, owner: Any, method: str, group: str) -> None:
    """The method does its work, and then goes wrong, for this group."""
    whole = getattr(owner, method)

    def broken(machine: Any, *args: Any) -> Any:
        done = whole(machine, *args)
        if machine.group_id == group:
            raise Defect(method)
        return done

    patch.setattr(owner, method, broken)


async def loaded(own: Shell, group: str) -> None:
    await until(lambda: not own.coordinator.groups.is_reloading(group))


def consumers(own: Shell, group: str) -> ConsumerGroup:
    found = own.coordinator.groups.by_id[group]
    assert isinstance(found, ConsumerGroup)
    return found


@pytest.mark.parametrize("method", ["enter", "take_step", "changed", "renew_session", "finish"])
async def test_8_36_half_a_change_is_taken_back(
    server: RedisServer, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it goes wrong: the group is what its members know, and the others do not notice."""
    group, beside = f"half-{method}", f"beside-{method}"
    async with shell(server, topics=TOPICS) as own:
        first = await own.heartbeat(group, "a", names=("t",))
        assert (await own.heartbeat(beside, "b", names=("t",))).error == 0
        await own.commit(group, 7)
        caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            breaks(patch, ConsumerGroupData, method, group)
            joining = await own.heartbeat(group, "late", names=("t", "u"))
            assert joining.error == NOT_AVAILABLE
            tracebacks = [one for one in caplog.records if one.exc_info]
            assert [group in one.message for one in tracebacks] == [True]
            again = await own.heartbeat(group, "late", names=("t", "u"))
            assert again.error in (LOADING, NOT_AVAILABLE)
            assert (await own.heartbeat(beside, "b", 1)).error == 0
        await loaded(own, group)
        found = consumers(own, group)
        assert (found.group_epoch, found.target_epoch) == (first.epoch, first.epoch)
        assert set(found.members) == {"a"}
        assert len(found.members["a"].assigned) == 4
        assert own.offset(group) == 7
        assert (await own.heartbeat(group, "a", first.epoch)).error == 0

        joined = await own.heartbeat(group, "late", names=("t", "u"))
        assert (joined.error, joined.epoch) == (0, first.epoch + 1)
        await own.quiet()
        memory = {one: (m.epoch, dict(m.assigned)) for one, m in found_members(own, group)}
    async with shell(server, topics=TOPICS) as later:
        assert {one: (m.epoch, dict(m.assigned)) for one, m in found_members(later, group)} == (
            memory
        )
        assert later.offset(group) == 7


def found_members(own: Shell, group: str) -> Any:
    return consumers(own, group).members.items()


async def test_8_36_a_group_whose_first_member_failed_is_not_there(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(server, topics=TOPICS) as own:
        with monkeypatch.context() as patch:
            breaks(patch, ConsumerGroupData, "enter", "stillborn")
            assert (await own.heartbeat("stillborn", "a", names=("t",))).error == NOT_AVAILABLE
        await loaded(own, "stillborn")
        assert "stillborn" not in own.coordinator.groups.by_id
        assert "stillborn" not in own.coordinator.groups.offsets
        assert (await own.heartbeat("stillborn", "a", names=("t",))).epoch == 1


async def test_8_36_whoever_waits_is_answered_and_timers_end(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classic members that are parked in a rebalance, when a timer of the group fails."""
    async with shell(server) as own:
        joined = await own.join("parked")
        first = asyncio.ensure_future(own.join("parked", joined.member_id))
        assert (await first).error == 0
        second = asyncio.ensure_future(own.join("parked"))  # waits for the first to join again
        await until(lambda: own.coordinator.groups.by_id["parked"].size == 2)
        with monkeypatch.context() as patch:
            breaks(patch, GroupData, "renew_session", "parked")
            assert (await own.join("parked", joined.member_id)).error == NOT_AVAILABLE
            assert (await second).error == NOT_AVAILABLE
        await loaded(own, "parked")
        armed = own.coordinator._timers
        assert not [key for key in armed if key.name == "parked"]
        again = await own.join("parked")
        assert (await own.sync("parked", again)).error == 0


async def test_8_36_an_exception_in_the_outcome_of_a_write(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stored, and only then something goes wrong: the client is told to ask again, and finds
    what is stored."""
    async with shell(server) as own:
        joined = await own.join("outcome")
        with monkeypatch.context() as patch:

            def broken(*_: object) -> None:
                raise Defect

            patch.setattr(sync, "assignments_stored", broken)
            assert (await own.sync("outcome", joined)).error == NOT_AVAILABLE
        await loaded(own, "outcome")
        found = own.coordinator.groups.by_id["outcome"]
        assert (found.generation_id, found.state) == (joined.generation_id, "Stable")
        assert (await own.sync("outcome", joined)).error == 0


async def test_8_36_an_exception_after_a_write_is_its_outcome(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The group is stored, and telling others what that means goes wrong: the group hears of it, or
    it could never write again."""
    async with shell(server) as own:
        joined = await own.join("untold")

        def broken(*_: object) -> None:
            raise Defect

        own.coordinator.on_stored = broken
        assert (await own.sync("untold", joined)).error == NOT_AVAILABLE
        assert "group untold could not be stored" in caplog.text
        joined = await own.join("untold", joined.member_id)
        with pytest.MonkeyPatch.context() as patch:  # a deletion takes another way to the store
            patch.setattr(own.coordinator, "on_stored", None)
            assert (await own.sync("untold", joined)).error == 0
            await own.leave("untold", joined)
            await own.quiet()
        assert await own.coordinator.delete("untold") == NOT_AVAILABLE


async def test_8_36_an_assignor_that_fails_is_asked_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with shell(server, topics=TOPICS) as own:

        def broken(_: object) -> Any:
            yield
            raise Defect

        with monkeypatch.context() as patch:
            patch.setitem(ASSIGNORS, "uniform", broken)
            assert (await own.heartbeat("unled", "a", names=("t",))).error == NOT_AVAILABLE
        assert "computing the target of group unled failed" in caplog.text
        await until(lambda: consumers(own, "unled").target_epoch == 1)
        answer = await own.heartbeat("unled", "a", names=("t",))
        assert (answer.error, len(answer.assigned or ())) == (0, 4)


async def test_8_36_expressions_that_cannot_be_matched_keep_their_topics(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(server, topics=TOPICS) as own:
        joined = await own.heartbeat("matched", "a", pattern="t|u")
        assert len(joined.assigned or ()) == 6
        with monkeypatch.context() as patch:

            def broken(*_: object) -> Any:
                yield
                raise Defect

            patch.setattr(expressions, "match_steps", broken)
            group = consumers(own, "matched")
            group.refresh_ms = 0
            own.coordinator.jobs.topic_changed("u")
            await until(lambda: group.refresh_ms > 0)  # it was tried
        again = await own.heartbeat("matched", "a", joined.epoch, owned=frozenset())
        assert (again.error, again.epoch, again.assigned) == (0, joined.epoch, None)


async def test_8_36_a_group_that_cannot_be_restored_does_not_keep_others_from_it(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with shell(server, topics=TOPICS) as own:
        for name in ("unwell", "well"):
            assert (await own.heartbeat(name, "a", names=("t",))).error == 0
        await own.commit("unwell", 9)
    with monkeypatch.context() as patch:
        breaks(patch, ConsumerGroupData, "enter", "unwell")
        async with shell(server, topics=TOPICS) as own:
            assert (await own.heartbeat("well", "a", 1)).error == 0
            assert (await own.heartbeat("unwell", "a", 1)).error == LOADING
            assert "group unwell failed, and is reloaded" in caplog.text
            patch.undo()
            await loaded(own, "unwell")
            assert (await own.heartbeat("unwell", "a", 1)).error == 0
            assert own.offset("unwell") == 9
