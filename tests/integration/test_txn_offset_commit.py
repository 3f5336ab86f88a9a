"""TxnOffsetCommit and what OffsetFetch sees of it: the handlers on the groups of a real store.

Whether a transaction is open is answered here in place of its coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, StoreUnavailable
from moldau.broker.group.offsets import CommittedOffset, TopicPartition
from moldau.broker.handlers import offset_fetch, txn_offset_commit
from moldau.broker.placement import slot_of
from moldau.broker.server.call import Call
from moldau.broker.txn.record import GROUP_OFFSETS, TxnPartition
from moldau.broker.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from moldau.broker.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau.broker.wire.schema import NO_UUID
from tests.support.drivers.group_shell import Shell, shell
from tests.support.stores.redis_server import RedisServer

P = 7
NONE = ErrorCode.NONE
Done = Callable[[ErrorCode, int], None]


class Enlistment:
    """The coordinator of the transaction; it answers when `answer` is called, or at once."""

    def __init__(self) -> None:
        self.error, self.number = NONE, 1
        self.is_held = False
        self.asked: list[tuple[str, int, int, TxnPartition, bool]] = []
        self._done: list[Done] = []

    def enlist(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        place: TxnPartition,
        *,
        verify_only: bool,
        done: Done,
    ) -> None:
        self.asked.append((transactional_id, producer_id, producer_epoch, place, verify_only))
        if self.is_held:
            self._done.append(done)
        else:
            done(self.error, self.number)

    async def was_asked(self) -> None:
        async with asyncio.timeout(20):
            while not self._done:  # noqa: ASYNC110 (there is no event to wait for)
                await asyncio.sleep(0.002)

    def answer(self) -> None:
        self._done.pop()(self.error, self.number)


class Topics:
    def get(self, name: str) -> object | None:
        return SimpleNamespace(name=name, partitions=2) if name in ("t", "u") else None

    async def find_each(self, wanted: Sequence[tuple[str, bytes]]) -> list[object | None]:
        if any(name == "unreadable" for name, _ in wanted):
            raise StoreUnavailable("gone")
        return [self.get(name) for name, _ in wanted]


class Host:
    """The part of a broker that the handlers use."""

    def __init__(self, own: Shell) -> None:
        self.own = own
        self.enlistment = Enlistment()
        self.acknowledged: list[tuple[str, dict[TopicPartition, CommittedOffset]]] = []
        fake = SimpleNamespace(
            group_coordinator=own.coordinator,
            topics=Topics(),
            enlistment=self.enlistment,
            logs=SimpleNamespace(group_position=self._no_position),
            authorizer=SimpleNamespace(is_enabled=False),
        )
        self._broker = cast("Broker", fake)
        own.coordinator.transactional.on_committed = lambda group, offsets: (
            self.acknowledged.append((group, dict(offsets)))
        )

    async def _no_position(self, group: str, topic: str, partition: int) -> None:
        return None

    async def commit(
        self,
        group: str,
        *places: tuple[str, int],
        version: int = 5,
        offset: int = 5,
        metadata: str = "",
        generation: int = -1,
        member: str = "",
        instance: str | None = None,
    ) -> list[int]:
        """The errors of the partitions."""
        request = TxnOffsetCommitRequest("x", group, P, 3, generation, member, instance)
        request.topics = [
            TxnOffsetCommitRequestTopic(
                name, [TxnOffsetCommitRequestPartition(partition, offset, 4, metadata)]
            )
            for name, partition in places or (("t", 0),)
        ]
        answer = await txn_offset_commit.handle(self._broker, request, _call(version))
        assert [
            (topic.name, partition.partition_index)
            for topic in answer.topics
            for partition in topic.partitions
        ] == list(places or (("t", 0),))
        return [one.error_code for topic in answer.topics for one in topic.partitions]

    async def fetch(self, group: str, *, require_stable: bool) -> tuple[int, int]:
        """Error and offset of partition 0."""
        request = OffsetFetchRequest(group, [OffsetFetchRequestTopic("t", [0])])
        request.require_stable = require_stable
        answer = await offset_fetch.handle(self._broker, request, _call(7))
        (found,) = answer.topics[0].partitions
        return found.error_code, found.committed_offset


def _call(version: int) -> Call:
    return cast("Call", SimpleNamespace(header=SimpleNamespace(api_version=version)))


@pytest.mark.parametrize("commit", [True, False])
async def test_7_24_unstable_until_the_marker(server: RedisServer, commit: bool) -> None:
    group = f"unstable-{commit}"
    async with shell(server) as own:
        host = Host(own)
        await own.commit(group, 1)
        assert await host.commit(group, offset=5, metadata="note") == [NONE]
        unstable = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        assert await host.fetch(group, require_stable=True) == unstable
        assert await host.fetch(group, require_stable=False) == (NONE, 1)
    async with shell(server) as own:  # whoever owned it was killed
        host = Host(own)
        assert await host.fetch(group, require_stable=True) == unstable
        assert await host.fetch(group, require_stable=False) == (NONE, 1)
        await own.end(group, P, 1, commit=commit)
        assert await host.fetch(group, require_stable=True) == (NONE, 5 if commit else 1)
        place = TopicPartition("t", 0)
        found = own.coordinator.groups.offsets[group].get(*place)
        assert found is not None
        if commit:
            assert (found.leader_epoch, found.metadata, found.expire_timestamp_ms) == (
                4,
                "note",
                None,
            )
        # 30. Only what is committed is acknowledged in a native topic.
        assert host.acknowledged == ([(group, {place: found})] if commit else [])


@pytest.mark.parametrize("version", range(6))
async def test_7_24_the_slot_of_the_group_joins_the_transaction(
    server: RedisServer, version: int
) -> None:
    async with shell(server) as own:
        host = Host(own)
        assert await host.commit(f"joins-{version}", version=version) == [NONE]
        place = TxnPartition(GROUP_OFFSETS, NO_UUID, slot_of(f"joins-{version}"))
        assert host.enlistment.asked == [("x", P, 3, place, version < 5)]


@pytest.mark.parametrize(
    ("error", "expected", "older"),
    [
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING, {}),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH, {}),
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, {}),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS, {}),
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE, {}),
        *(
            (
                away,
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                dict.fromkeys((0, 1), ErrorCode.COORDINATOR_NOT_AVAILABLE),
            )
            for away in (
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                ErrorCode.NOT_COORDINATOR,
            )
        ),
        (
            ErrorCode.TRANSACTION_ABORTABLE,
            ErrorCode.TRANSACTION_ABORTABLE,
            dict.fromkeys(range(4), ErrorCode.INVALID_TXN_STATE),
        ),
    ],
)
async def test_7_24_what_its_coordinator_refuses(
    server: RedisServer, error: ErrorCode, expected: ErrorCode, older: dict[int, ErrorCode]
) -> None:
    async with shell(server) as own:
        host = Host(own)
        host.enlistment.error = error
        for version in range(6):
            assert await host.commit("refused", version=version) == [older.get(version, expected)]
        assert "refused" not in own.coordinator.groups.by_id


async def test_7_24_partitions_that_are_refused_spare_the_others(server: RedisServer) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    places = (("none", 0), ("t", 0), ("t", 2), ("t", -1))
    async with shell(server) as own:
        host = Host(own)
        unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await host.commit("some", *places) == [unknown, NONE, unknown, unknown]
        assert own.pending("some") == {(P, "t", 0): 5}
        # The store cannot be asked: what is known here is committed, the rest is to be retried.
        host.enlistment.asked.clear()
        answers = await host.commit("others", ("none", 0), ("t", 0), ("unreadable", 0))
        assert answers == [unavailable, NONE, unavailable]
        assert own.pending("others") == {(P, "t", 0): 5}
        too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert await host.commit("large", metadata="x" * 4097) == [too_large]
        assert await host.commit("none", ("none", 0)) == [unknown]
        assert len(host.enlistment.asked) == 1  # nothing to commit, nothing to join for


async def test_7_25_member_generation_and_instance(server: RedisServer) -> None:
    async with shell(server) as own:
        host = Host(own)
        assert await host.commit("new", generation=1) == [ErrorCode.ILLEGAL_GENERATION]
        assert await host.commit("") == [ErrorCode.INVALID_GROUP_ID]
        joined = await own.join("g")
        member, generation = joined.member_id, joined.generation_id
        own_commit = {"member": member, "generation": generation}
        assert own.coordinator.groups.by_id["g"].state == "CompletingRebalance"
        assert await host.commit("g", **own_commit) == [NONE]  # type: ignore[arg-type]
        assert (await own.sync("g", joined)).error == NONE
        assert await host.commit("g", **own_commit) == [NONE]  # type: ignore[arg-type]
        assert await host.commit("g") == [NONE]
        stale = await host.commit("g", member=member, generation=generation - 1)
        assert stale == [ErrorCode.ILLEGAL_GENERATION]
        stranger = await host.commit("g", member="x", generation=generation)
        assert stranger == [ErrorCode.UNKNOWN_MEMBER_ID]


async def test_7_25_a_member_that_is_fenced_while_the_coordinator_is_asked(
    server: RedisServer,
) -> None:
    async with shell(server) as own:
        host = Host(own)
        joined = await own.stable("fenced")
        host.enlistment.is_held = True
        committing = asyncio.ensure_future(
            host.commit("fenced", member=joined.member_id, generation=joined.generation_id)
        )
        await host.enlistment.was_asked()
        await own.join("fenced", joined.member_id)
        host.enlistment.answer()
        assert await committing == [ErrorCode.ILLEGAL_GENERATION]
        assert own.pending("fenced") == {}


async def test_7_24_the_marker_comes_before_its_late_commit(server: RedisServer) -> None:
    async with shell(server) as own:
        host = Host(own)
        host.enlistment.is_held = True
        committing = asyncio.ensure_future(host.commit("late"))
        await host.enlistment.was_asked()
        await own.end("late", P, 1, commit=False)
        host.enlistment.answer()
        assert await committing == [ErrorCode.INVALID_TXN_STATE]
        assert "late" not in own.coordinator.groups.by_id
        host.enlistment.is_held, host.enlistment.number = False, 2
        assert await host.commit("late") == [NONE]


async def test_7_25_groups_of_others_and_groups_that_are_loading(server: RedisServer) -> None:
    async with shell(server) as own:
        host = Host(own)
        own.coordinator.groups.start_loading(slot_of("away"))
        loading, away = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR
        assert await host.commit("away", version=2) == [loading]
        assert await host.commit("away", version=1) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        own.coordinator.slots.give_up()
        assert await host.commit("away") == [away]
