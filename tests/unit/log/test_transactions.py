"""Transactions in a log: joining, markers, the last stable offset, aborted transactions."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.partition import PartitionLog
from moldau.broker.log.state import transactions
from moldau.broker.log.writing.append import ADMINISTRATORS
from moldau.broker.store.aborted import AbortedTransaction
from moldau.broker.wire.batch import CONTROL, headers, read_header
from moldau.broker.wire.control import EndMarker, build_end_marker, read_end_marker
from tests.support.drivers.log_host import Host, WaitedAppend, append, begin, stored, until
from tests.support.drivers.transactional import Coordinator, end, send, transactional_batch
from tests.support.stores.redis_server import RedisServer


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def with_coordinator(host: Host, **numbers: int) -> Coordinator:
    coordinator = Coordinator()
    coordinator.numbers = {int(name[1:]): number for name, number in numbers.items()}
    host.coordinator = coordinator
    return coordinator


async def refusal(outcome: asyncio.Future[int]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        await outcome
    return refused.value.code


async def aborted(log: PartitionLog, offset: int, upto: int) -> list[tuple[int, int]]:
    found: asyncio.Future[list[AbortedTransaction]] = asyncio.get_running_loop().create_future()
    log.find_aborted(offset, upto, found.set_result)  # type: ignore[arg-type]
    return [(each.producer_id, each.first) for each in await found]


def stable(log: PartitionLog) -> int:
    return log.bounds()[3]


async def markers(host: Host, log: PartitionLog) -> list[tuple[int, bool, int]]:
    """Producer id, commit and number of each, as they lie in the store."""
    found = []
    for entry in await stored(host, log):
        at = 0
        for header in headers(entry.blob):
            if header.attributes & CONTROL:
                marker = read_end_marker(entry.blob, at)
                found.append((header.producer_id, marker.commit, marker.coordinator_epoch))
            at += header.size
    return found


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_is_read_as_it_was_written(commit: bool) -> None:
    marker = EndMarker(commit, 2**31 - 1)
    batch = build_end_marker(7, 3, marker, 1_000)
    assert len(batch) == 78
    assert read_end_marker(batch) == marker
    header = read_header(batch)
    assert (header.producer_id, header.producer_epoch, header.record_count) == (7, 3, 1)


async def test_a_transaction_from_its_first_batch_to_its_marker(
    server: RedisServer, topic: str
) -> None:
    async with Host(server.url) as host:
        log = await host.create(topic)
        with_coordinator(host, p7=1)
        assert await send(log, 7, 0, b"a", b"b").outcome == 0
        assert await send(log, 7, 2).outcome == 2
        assert host.asked == [(7, 0, True)], "once, for the first batch"
        assert (log.end, stable(log)) == (3, 0)
        await end(log, 7, 1, commit=True)
        assert (log.end, stable(log)) == (4, 4)
        assert not log.has_aborted
        await end(log, 7, 1, commit=True)
        assert log.end == 4, "the marker is there already"
        assert await markers(host, log) == [(7, True, 1)]


async def test_7_8_a_batch_behind_its_marker_is_refused(server: RedisServer, topic: str) -> None:
    async with Host(server.url) as host, Host(server.url, "other") as other_host:
        log, other = await host.create(topic), other_host.log(topic)
        for each in (host, other_host):
            with_coordinator(each, p7=1)
        await send(log, 7, 0).outcome
        await end(other, 7, 1, commit=False)
        # The coordinator's answer is out of date: transaction 1 has its marker.
        for late in (log, other):
            assert await refusal(send(late, 7, 1).outcome) is ErrorCode.TRANSACTION_ABORTABLE
        await log.current()
        assert stable(log) == log.end == 2
        # A marker of a newer epoch fences what is older.
        await end(log, 7, 2, commit=False, epoch=1)
        assert await refusal(send(log, 7, 1).outcome) is ErrorCode.INVALID_PRODUCER_EPOCH


async def test_7_9_batches_keep_their_order_while_the_coordinator_is_asked(
    server: RedisServer, topic: str
) -> None:
    async with Host(server.url) as host:
        log = await host.create(topic)
        coordinator = with_coordinator(host, p7=1, p8=4)
        coordinator.is_held = True
        first = [send(log, 7, at) for at in range(3)]
        await until(lambda: bool(host.asked))
        first += [send(log, 7, at) for at in range(3, 5)]
        assert await append(log, transactional_batch(9, 0, [b"plain"], plain=True)) == 0
        assert not any(each.outcome.done() for each in first)
        coordinator.go_on()
        assert [await each.outcome for each in first] == [1, 2, 3, 4, 5]
        assert await send(log, 8, 0).outcome == 6
        assert len(host.asked) == 2


async def test_what_fails_to_join_is_not_overtaken(server: RedisServer, topic: str) -> None:
    async with Host(server.url) as host:
        log = await host.create(topic)
        coordinator = with_coordinator(host, p7=1)
        coordinator.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        first, second = send(log, 7, 0), send(log, 7, 1)
        for each in (first, second):
            assert await refusal(each.outcome) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        coordinator.error = ErrorCode.NONE
        third = send(log, 7, 2)
        assert await refusal(third.outcome) is ErrorCode.KAFKA_STORAGE_ERROR
        assert [await send(log, 7, at).outcome for at in range(3)] == [0, 1, 2]


async def test_7_10_batches_that_do_not_belong(server: RedisServer, topic: str) -> None:
    async with Host(server.url) as host:
        log = await host.create(topic)
        with_coordinator(host, p7=1, p8=1)
        await send(log, 7, 0).outcome
        plain = begin(log, transactional_batch(7, 1, [b"plain"], plain=True))
        assert await refusal(plain.outcome) is ErrorCode.INVALID_TXN_STATE
        late = send(log, 8, 5, adds=True)
        assert await refusal(late.outcome) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await send(log, 8, 0, adds=True).outcome == 1


async def test_7_11_a_batch_retried_inside_its_transaction(server: RedisServer, topic: str) -> None:
    async with Host(server.url) as host:
        log = await host.create(topic)
        with_coordinator(host, p7=1)
        assert await send(log, 7, 0).outcome == 0
        assert await send(log, 7, 0).outcome == 0
        assert log.end == 1
        await end(log, 7, 1, commit=True)
        assert await send(log, 7, 0).outcome == 0, "also behind the marker"


async def test_a_new_epoch_begins_with_sequence_zero(server: RedisServer, topic: str) -> None:
    async with Host(server.url) as host:
        log = await host.create(topic)
        coordinator = with_coordinator(host, p7=1)
        await send(log, 7, 0, adds=True).outcome
        await end(log, 7, 1, commit=True, epoch=1)
        coordinator.numbers[7] = 2
        out = send(log, 7, 1, epoch=1, adds=True)
        assert await refusal(out.outcome) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await send(log, 7, 0, epoch=1, adds=True).outcome == 2


async def test_7_19_the_last_stable_offset_is_that_of_the_oldest_open_one(
    server: RedisServer, topic: str
) -> None:
    async with Host(server.url) as host:
        log = await host.create(topic)
        with_coordinator(host, p7=1, p8=1)
        await append(log, transactional_batch(9, 0, [b"x"] * 3, plain=True))
        await send(log, 7, 0).outcome
        await send(log, 8, 0).outcome
        await end(log, 8, 1, commit=True)
        assert stable(log) == 3
        tail = log.committed.read_tail(0, 1 << 20, at_least_one=True)
        assert tail is not None
        assert [header.base_offset for blob in tail for header in headers(blob)] == [0]
        await end(log, 7, 1, commit=False)
        assert stable(log) == log.end == 7
        assert await aborted(log, 0, 7) == [(7, 3)]


async def test_7_19_it_is_cut_in_the_middle_of_an_entry(server: RedisServer, topic: str) -> None:
    """One entry with a plain batch, then one of a transaction: from memory and from the store."""
    async with Host(server.url) as host:
        log = await host.create(topic)
        with_coordinator(host, p7=1)
        await send(log, 7, 0).outcome
        await end(log, 7, 1, commit=True)
        host.coordinator.numbers[7] = 2  # type: ignore[attr-defined]
        plain = begin(log, transactional_batch(9, 0, [b"x"] * 3, plain=True))
        later = send(log, 7, 1)
        await asyncio.gather(plain.outcome, later.outcome)
        assert stable(log) == 5

        async def read() -> list[int]:
            blobs = log.committed.read_tail(0, 1 << 20, at_least_one=True)
            if blobs is None:
                found: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
                log.committed.read_store(
                    0,
                    1 << 20,
                    at_least_one=True,
                    done=found.set_result,  # type: ignore[arg-type]
                )
                blobs = list(await found)
            return [header.base_offset for blob in blobs for header in headers(blob)]

        assert await read() == [0, 1, 2]
        log.reader.tail.clear()
        assert await read() == [0, 1, 2]


async def test_7_20_every_worker_and_every_restart_knows_the_same(
    server: RedisServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "HELD_IN_MEMORY", 8)
    async with Host(server.url) as host:
        log = await host.create(topic)
        coordinator = with_coordinator(host, p7=0, p8=1, p9=1)
        await send(log, 8, 0).outcome
        expected = []
        for number in range(1, 40):
            coordinator.numbers[7] = number
            first = await send(log, 7, number - 1).outcome
            commit = number % 3 == 0
            await end(log, 7, number, commit=commit)
            if not commit:
                expected.append((7, first))
            if number % 7 == 0:
                await log.save_snapshot()
        await end(log, 8, 1, commit=False)
        expected.insert(0, (8, 0))
        await send(log, 9, 0).outcome
        assert log.reader.state.transactions.held_from > 0

        async with Host(server.url, "other") as other_host:
            other = other_host.log(topic)
            await other.current()
            for each in (log, other):
                assert stable(each) == log.end - 1
                assert await aborted(each, 0, log.end) == expected
                middle = expected[10][1]
                reaching = [pair for pair in expected if pair[1] <= middle]
                assert await aborted(each, middle, middle + 1) == [(8, 0), reaching[-1]]
            await end(other, 9, 1, commit=True)
            assert stable(other) == other.end


async def test_a_marker_that_comes_late_ends_nothing_else(server: RedisServer, topic: str) -> None:
    async with Host(server.url) as host, Host(server.url, "other") as other_host:
        log, other = await host.create(topic), other_host.log(topic)
        coordinator = with_coordinator(host, p7=1)
        await send(log, 7, 0).outcome
        await end(other, 7, 1, commit=True)
        coordinator.numbers[7] = 2
        await send(log, 7, 1).outcome
        await end(log, 7, 1, commit=True)  # the leader wakes up with the old request
        assert await markers(host, log) == [(7, True, 1)]
        assert stable(log) == 2
        await end(log, 7, 2, commit=False)
        assert await markers(host, log) == [(7, True, 1), (7, False, 2)]


async def test_every_place_gets_a_marker_written_to_or_not(server: RedisServer, topic: str) -> None:
    async with Host(server.url) as host:
        log = await host.create(topic)
        with_coordinator(host, p7=1)
        await end(log, 7, 1, commit=False)
        assert await markers(host, log) == [(7, False, 1)]
        assert await refusal(send(log, 7, 0).outcome) is ErrorCode.TRANSACTION_ABORTABLE
        assert not log.has_aborted


async def test_7_28_an_administrator_ends_what_is_open(server: RedisServer, topic: str) -> None:
    async with Host(server.url) as host:
        log = await host.create(topic)
        with_coordinator(host, p7=4)
        await end(log, 7, ADMINISTRATORS, commit=False)
        assert log.end == 0, "nothing is open"
        await end(log, 7, 3, commit=True)
        await send(log, 7, 0, epoch=1).outcome
        with pytest.raises(KafkaError) as refused:
            await end(log, 7, ADMINISTRATORS, commit=False)
        assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        assert (stable(log), log.end) == (1, 2)
        await end(log, 7, ADMINISTRATORS, commit=False, epoch=1)
        assert stable(log) == log.end == 3
        await end(log, 7, 4, commit=True)
        assert await markers(host, log) == [(7, True, 3), (7, False, 3), (7, True, 4)]


async def test_numbers_are_serial(server: RedisServer, topic: str) -> None:
    async with Host(server.url) as host:
        log = await host.create(topic)
        last = 2**31 - 1
        coordinator = with_coordinator(host, p7=last)
        await send(log, 7, 0).outcome
        await end(log, 7, last, commit=True)
        coordinator.numbers[7] = 1
        await send(log, 7, 1).outcome
        await end(log, 7, 1, commit=True)
        await end(log, 7, last, commit=True)
        assert await markers(host, log) == [(7, True, last), (7, True, 1)]


async def test_a_full_store_takes_markers(server: RedisServer, topic: str) -> None:
    async with Host(server.url) as host:
        log = await host.create(topic)
        with_coordinator(host, p7=1)
        await send(log, 7, 0).outcome
        await host.control.ask("CONFIG", "SET", "maxmemory", 1)
        try:
            refused = WaitedAppend(transactional_batch(9, 0, [b"x"], plain=True))
            log.append(refused)
            await end(log, 7, 1, commit=True)
            with pytest.raises(Exception, match=r"OOM|memory"):
                await refused.outcome
            assert stable(log) == log.end == 2
        finally:
            await host.control.ask("CONFIG", "SET", "maxmemory", 0)
        assert await append(log, transactional_batch(9, 0, [b"x"], plain=True)) == 2
