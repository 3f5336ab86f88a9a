"""Logs of mirrored batches, which keep their offsets: holes stay holes, and the fold is right."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.keeping import cleaning_pass
from moldau.broker.log.keeping.cleaning import KeyMap
from moldau.broker.log.partition import PartitionLog
from moldau.broker.log.reading.timestamps import offset_for_timestamp, offset_of_largest_timestamp
from moldau.broker.log.state.log_state import LogState
from moldau.broker.log.writing.append import ADMINISTRATORS
from moldau.broker.log.writing.append_queue import AppendQueue, InFlightEntry
from moldau.broker.log.writing.mirrored import MAX_END, MirroredChunk, admit_mirrored
from moldau.broker.settings.kafka import topic_config
from moldau.broker.settings.kafka.topic_keys import MIRROR_ENDED
from moldau.broker.wire.batch import (
    ATTRIBUTES_AT,
    headers,
    read_header,
    set_base_offset,
    split_batches,
)
from moldau.broker.wire.records import read_records
from tests.support.drivers.cleaner import NOW, Cleaner, check_size, create, read_on
from tests.support.drivers.log_host import Host, append, stored
from tests.support.drivers.mirrored import batch_at, marker_at, mirror, random_log
from tests.support.drivers.transactional import end
from tests.support.raw.record_batches import examples
from tests.support.stores.redis_server import RedisServer
from tests.unit.log.log_batches import fold, plain, sequenced

_names = (f"mirrored-{number}" for number in itertools.count())


class QueuedChunk(MirroredChunk):
    __slots__ = ("fault",)

    def __init__(self, data: bytes, at: int) -> None:
        super().__init__(bytearray(data), at)
        self.fault: BaseException | None = None

    def done(self, error: BaseException | None, base_offset: int, timestamp: int) -> None:
        self.fault = error


def queue() -> AppendQueue:
    return AppendQueue(lambda *_: None, lambda _: None, lambda: 0.0)


def apply_entry(state: LogState, entry: InFlightEntry) -> None:
    state.appended(
        entry.end,
        entry.size,
        entry.max_timestamp,
        entry.max_timestamp_base,
        entry.producers,
        entry.steps,
    )


# --- the fold (pure) ---


@examples(150)
@given(st.integers(0, 1 << 32), st.integers(1, 8))
def test_the_state_after_an_append_is_that_of_who_reads_it(seed: int, at_once: int) -> None:
    batches = random_log(random.Random(seed), start=seed % 2 * 77)
    writer, reader, at = LogState(), LogState(), 0
    for first in range(0, len(batches), at_once):
        chunk = QueuedChunk(b"".join(batches[first : first + at_once]), at)
        waiting = queue()
        waiting.waiting.append(chunk)
        entry = waiting.gather(writer, 4)
        assert entry.appends == [chunk]
        assert entry.base == at
        apply_entry(writer, entry)
        reader.apply(b"".join(entry.parts))
        assert writer.snapshot() == reader.snapshot()
        assert writer.transactions.aborted == reader.transactions.aborted
        at = entry.end
    assert writer.end == read_header(batches[-1]).next_offset


def test_everything_but_the_leader_epoch_stays() -> None:
    batches = random_log(random.Random(1))
    chunk = QueuedChunk(b"".join(batches), 0)
    entry = InFlightEntry(0, 0, epoch=6)
    chunk.add_to(entry, LogState())
    expected = []
    for batch in batches:
        copy = bytearray(batch)
        set_base_offset(copy, read_header(batch).base_offset, 6)
        expected.append(bytes(copy))
    assert [bytes(one) for one in split_batches(entry.parts[0])] == expected


def test_a_chunk_is_an_entry_of_its_own() -> None:
    waiting, state = queue(), LogState()
    chunks = [QueuedChunk(batch_at(0, [0]), 0), QueuedChunk(batch_at(1, [1]), 1)]
    waiting.waiting.extend(chunks)
    for chunk in chunks:
        entry = waiting.gather(state, 0)
        assert entry.appends == [chunk]
        apply_entry(state, entry)
    assert not waiting.waiting


def test_a_full_store_gets_markers_only() -> None:
    waiting, state = queue(), LogState()
    chunk = QueuedChunk(batch_at(0, [0]), 0)
    waiting.waiting.append(chunk)
    assert not waiting.gather(state, 0, only_markers=True).parts
    assert list(waiting.waiting) == [chunk]
    assert chunk.fault is None


def test_a_chunk_for_another_end_is_refused() -> None:
    state = LogState()
    state.end = 5
    behind = QueuedChunk(batch_at(3, [3]), 3)
    waiting = queue()
    waiting.waiting.append(behind)
    assert not waiting.gather(state, 0).parts
    assert isinstance(behind.fault, KafkaError)
    assert behind.fault.code is ErrorCode.OFFSET_OUT_OF_RANGE
    # What it follows may have been appended by another worker: caught up once, then refused.
    ahead = QueuedChunk(batch_at(9, [9]), 7)
    waiting.waiting.append(ahead)
    assert not waiting.gather(state, 0).parts
    assert waiting.wants_to_catch_up
    assert ahead.fault is None
    assert not waiting.gather(state, 0).parts
    assert isinstance(ahead.fault, KafkaError)


def _damaged() -> bytes:
    batch = bytearray(batch_at(0, [0]))
    batch[-1] ^= 1
    return bytes(batch)


def _old_format() -> bytes:
    batch = bytearray(batch_at(0, [0]))
    batch[16] = 1
    return bytes(batch)


def _backwards() -> bytes:
    return batch_at(5, [5]) + batch_at(4, [4])


def _no_marker() -> bytes:
    batch = bytearray(batch_at(0, [0]))
    batch[ATTRIBUTES_AT + 1] |= 0x20
    return bytes(batch)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (batch_at(0, [0])[:-1], ErrorCode.CORRUPT_MESSAGE),
        (_damaged(), ErrorCode.CORRUPT_MESSAGE),
        (_no_marker(), ErrorCode.CORRUPT_MESSAGE),
        (_old_format(), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (_backwards(), ErrorCode.INVALID_RECORD),
    ],
)
def test_what_is_not_whole_and_in_order_is_refused(data: bytes, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        admit_mirrored(bytearray(data), 0)
    assert refused.value.code is code


def test_a_batch_before_the_end_is_refused() -> None:
    with pytest.raises(KafkaError, match="offset 3 on, after offset 3"):
        admit_mirrored(bytearray(batch_at(3, [3])), 4)


@pytest.mark.parametrize("first", [MAX_END, 1 << 53])
def test_offsets_beyond_what_a_log_can_number_are_refused(first: int) -> None:
    """Its end would be in no reply: the partition could not be read again."""
    with pytest.raises(KafkaError, match=f"offset {first}") as refused:
        admit_mirrored(bytearray(batch_at(first, [first])), 0)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert admit_mirrored(bytearray(batch_at(MAX_END - 1, [MAX_END - 1])), 0)


# --- logs (a real store) ---


async def mirrored_log(host: Host, batches: list[bytes], at_once: int = 3) -> PartitionLog:
    log = await host.create(next(_names))
    host.mirrored[log.topic] = "cluster:topic"
    at = 0
    for first in range(0, len(batches), at_once):
        some = batches[first : first + at_once]
        assert await mirror(log, at, *some) == at
        at = read_header(some[-1]).next_offset
    return log


def offsets_of(batches: list[bytes]) -> list[int]:
    return [
        record.offset
        for batch in batches
        if not read_header(batch).attributes & 0x20
        for record in read_records(batch, 1 << 20)
    ]


async def offsets_read(log: PartitionLog, offset: int, limit: int) -> list[int]:
    found = await read_on(log, offset, limit)
    return [record.offset for record in found if record.key is None or record.key[:1] == b"k"]


@pytest.mark.parametrize("limit", [1, 200, 1 << 20])
async def test_reading_from_any_offset(server: RedisServer, limit: int) -> None:
    batches = [
        batch_at(5_000_000_000, [5_000_000_000]),
        batch_at(5_000_000_003, [5_000_000_004, 5_000_000_006], last=5_000_000_008),
        batch_at(5_000_000_020, [5_000_000_020]),
        batch_at(5_000_000_021, [5_000_000_021]),
        batch_at(5_000_000_050, [5_000_000_051]),
    ]
    every = offsets_of(batches)
    async with Host(server.url) as host:
        for at_once in (1, 2, 5):
            log = await mirrored_log(host, batches, at_once)
            for cached in (True, False):
                if not cached:
                    log = host.log(log.topic)
                    await log.current()
                assert log.end == 5_000_000_052
                for offset in (0, 17, *range(4_999_999_999, log.end)):
                    expected = [at for at in every if at >= offset]
                    assert await offsets_read(log, offset, limit) == expected
                    found = log.reader.read_tail(offset, limit, at_least_one=True)
                    if found is not None:
                        (first, *_) = headers(found[0])
                        assert first.next_offset > offset
                        assert first.base_offset <= expected[0]


async def test_a_log_is_loaded_as_it_was_written(server: RedisServer) -> None:
    """Its entries show it, a snapshot and the entries after it, and whoever follows it."""
    for seed in range(12):
        rng = random.Random(seed)
        batches = random_log(rng, batches=20, start=rng.choice((0, 55)))
        async with Host(server.url) as host:
            log = await mirrored_log(host, batches, rng.randint(1, 4))
            expected = (await fold(host, log)).snapshot()
            assert log.reader.state.snapshot() == expected
            again = host.log(log.topic)
            await again.current()
            assert again.reader.state.snapshot() == expected
            await log.save_snapshot()
            restored = host.log(log.topic)
            await restored.current()
            assert restored.reader.state.end == log.end
            assert restored.bounds() == log.bounds()


async def test_entries_are_dense_though_offsets_are_not(server: RedisServer) -> None:
    async with Host(server.url) as host:
        log = await mirrored_log(host, random_log(random.Random(3), start=900))
        expected = 0
        for entry in await stored(host, log):
            assert entry.base == expected
            expected = [header.next_offset for header in headers(entry.blob)][-1]
        assert expected == log.end


async def test_two_mirrors_append_each_batch_once(server: RedisServer) -> None:
    async with Host(server.url) as host:
        log = await mirrored_log(host, [batch_at(3, [3])])
        other = host.log(log.topic)
        await other.current()
        assert await mirror(other, 4, batch_at(6, [6])) == 4
        with pytest.raises(KafkaError, match="ends at offset 7, and not at 4"):
            await mirror(log, 4, batch_at(6, [6]))
        assert await mirror(log, 7, batch_at(7, [7])) == 7
        # One that is behind catches up before it refuses.
        assert await mirror(other, 8, batch_at(9, [9])) == 8
        assert [r.offset for r in await read_on(other)] == [3, 6, 7, 9]


async def test_offsets_by_timestamp(server: RedisServer) -> None:
    batches = [batch_at(at, [at, at + 2], last=at + 4) for at in range(100, 1000, 10)]
    async with Host(server.url) as host:
        log = await mirrored_log(host, batches)
        for wanted, found in ((0, 100), (1000, 100), (1001, 102), (1021, 110), (9920, 992)):
            answer = await offset_for_timestamp(host.streams, log.reader, wanted)
            assert answer is not None
            assert answer.offset == found
        assert await offset_for_timestamp(host.streams, log.reader, 9_921) is None
        newest = await offset_of_largest_timestamp(log.reader)
        assert newest is not None
        assert newest.offset == 992


async def test_delete_records_and_retention(server: RedisServer) -> None:
    batches = [batch_at(at, [at, at + 2], last=at + 4) for at in range(100, 200, 10)]
    async with Host(server.url) as host:
        log = await mirrored_log(host, batches, 1)
        assert await log.delete_before(100) == 100
        assert await log.delete_before(126) == 126  # in a hole
        assert await offsets_read(log, 126, 1 << 20) == [
            at for at in offsets_of(batches) if at >= 126
        ]
        config = topic_config({"retention.ms": "0"})
        await log.enforce_retention(config, 1_555)  # up to offset 155
        assert log.start == 155
        assert (await offsets_read(log, 155, 1 << 20))[0] == 160
        again = host.log(log.topic)
        await again.current()
        assert (again.start, again.end) == (155, 195)
        assert await append(again, plain(b"after")) == 195


async def test_transactions_and_their_end(server: RedisServer) -> None:
    async with Host(server.url) as host:
        log = await mirrored_log(
            host,
            [
                batch_at(10, [10], producer=(1, 0, 0), transactional=True),
                batch_at(15, [15], producer=(2, 0, 0), transactional=True),
                marker_at(18, 1, commit=False),
                batch_at(19, [19]),
            ],
        )
        assert log.bounds() == (0, 20, 20, 15)
        found: list[Any] = []
        log.find_aborted(0, 20, found.append)
        assert [(one.first, one.marker, one.producer_id) for one in found[0]] == [(10, 18, 1)]
        # A coordinator here has no transaction in a mirror; only the cut-over ends what is open.
        await end(log, 2, 7, commit=True)
        with pytest.raises(KafkaError, match="is a mirror"):
            await end(log, 2, ADMINISTRATORS, commit=False)
        assert log.end == 20
        host.mirrored[log.topic] += MIRROR_ENDED
        await end(log, 2, 7, commit=True)
        assert log.end == 20
        await end(log, 2, ADMINISTRATORS, commit=False)
        assert log.bounds() == (0, 21, 21, 21)


async def test_an_idempotent_producer_goes_on_after_the_end_of_the_mirror(
    server: RedisServer,
) -> None:
    async with Host(server.url) as host:
        log = await mirrored_log(host, [batch_at(40, [40, 41], producer=(7, 3, 10))])
        host.mirrored.clear()
        # The retry of a batch that the source has taken, then the next one.
        assert await append(log, sequenced(7, 10, records=2, epoch=3)) == 40
        assert await append(log, sequenced(7, 12, epoch=3)) == 42
        with pytest.raises(KafkaError, match="expected 13"):
            await append(log, sequenced(7, 20, epoch=3))


# --- compaction ---


async def test_compaction_of_a_mirrored_log(
    server: RedisServer, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    class Map(KeyMap):
        def __init__(self, capacity: int) -> None:
            sizes.append(capacity)
            super().__init__(capacity)

    monkeypatch.setattr(cleaning_pass, "KeyMap", Map)
    first = 7_000_000_000
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        log = cleaner.log
        host.mirrored[log.topic] = "cluster:topic"
        at = 0
        for number, base in enumerate(range(first, first + 100, 10)):
            batch = batch_at(base, [base + 3], key=b"key-%d" % (number % 3), timestamp=NOW)
            await mirror(log, at, batch)
            at = base + 4
        await log.delete_before(first)
        assert await cleaner.run()
        found = [(record.offset, record.key) for record in await read_on(log)]
        assert found == [
            (first + 73, b"key-1"), (first + 83, b"key-2"), (first + 93, b"key-0"),
        ]  # fmt: skip
        assert max(sizes) <= 100
        check_size(log, store)
        assert await mirror(log, at, batch_at(at + 6, [at + 6], timestamp=NOW)) == at


async def test_compaction_of_a_log_whose_start_is_not_raised_yet(server: RedisServer) -> None:
    """Its first entry covers billions of offsets, and no memory is taken for them."""
    first = 7_000_000_000
    async with Host(server.url) as host:
        cleaner = Cleaner(host, await create(host))
        cleaning_keys, cleaning_pass.KEYS_AT_ONCE = cleaning_pass.KEYS_AT_ONCE, 1
        try:
            await mirror(cleaner.log, 0, batch_at(first, [first, first + 1], timestamp=NOW))
            at = first + 2
            for _ in range(3):
                await mirror(cleaner.log, at, batch_at(at, [at], key=b"same", timestamp=NOW))
                at += 1
            while await cleaner.run():
                pass
        finally:
            cleaning_pass.KEYS_AT_ONCE = cleaning_keys
        kept = [record.offset for record in await read_on(cleaner.log)]
        assert kept[:2] == [first, first + 1]
        assert kept[-1] == at - 1
