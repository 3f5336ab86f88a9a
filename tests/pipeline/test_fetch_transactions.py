"""Reading and archiving a log with transactions, from replies made by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from moldau.broker.wire.batch import TRANSACTIONAL, read_header, set_base_offset
from moldau.broker.wire.control import EndMarker, build_end_marker
from moldau.broker.wire.messages.fetch import AbortedTransaction, FetchRequest, PartitionData
from moldau.broker.wire.messages.offset_for_leader_epoch import EpochEndOffset
from moldau.broker.wire.records import Record, build_batch
from moldau.ops.client import TopicPartition
from moldau.ops.client.batches import READ_COMMITTED
from moldau.ops.pipeline.archive import task as archive_task
from moldau.ops.pipeline.archive.task import ArchiveRange, ArchiveTask, run_task
from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.lake.schemas import BATCHES, RECORDS
from moldau.ops.pipeline.source.decode import decode
from moldau.ops.pipeline.source.fetch import FetchSettings, OffsetRange, RangeReader

PLACE = TopicPartition("orders", 0)
COMMITTED = FetchSettings((("127.0.0.1", 1),), isolation=READ_COMMITTED, patience_s=0.1)
NOW = 1_750_000_000_000


def records(offset: int, producer: int, count: int = 1) -> bytes:
    made = [Record(offset + at, NOW, b"k%d" % (offset + at), b"v") for at in range(count)]
    return bytes(
        build_batch(
            made,
            base_offset=offset,
            last_offset=offset + count - 1,
            attributes=TRANSACTIONAL if producer >= 0 else 0,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
        )
    )


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    batch = build_end_marker(producer, 0, EndMarker(commit, 1), NOW)
    set_base_offset(batch, offset)
    return bytes(batch)


# Producer 7 aborts, then commits; 8 commits; 9 aborts, and its marker is behind the open one of 10.
LOG = [
    records(0, 7, 2),
    records(2, -1),
    records(3, 8),
    records(4, 7),
    marker(5, 7, commit=False),
    marker(6, 8, commit=True),
    records(7, 9, 3),
    records(10, 7, 2),
    marker(12, 7, commit=True),
    records(13, 10),
    marker(14, 9, commit=False),
]
ABORTED = [(7, 0, 5), (9, 7, 14)]  # producer, first offset, marker
STABLE, END = 13, 15
IS_COMMITTED = [2, 3, 10, 11]


class FakeLeader:
    """Replies to fetches of a log: up to `at_once` batches each."""

    def __init__(
        self, log: list[bytes], *, at_once: int, aborted: list[tuple[int, int, int]] = ABORTED
    ) -> None:
        self._log = log
        self._aborted = aborted
        self._at_once = at_once
        self._asked: list[FetchRequest] = []
        self.fetches: list[int] = []

    def send(self, request: FetchRequest) -> None:
        self._asked.append(request)

    def receive(self) -> Any:
        offset = self._asked.pop(0).topics[0].partitions[0].fetch_offset
        self.fetches.append(offset)
        stored = [(read_header(batch), batch) for batch in self._log]
        served = [
            (header, batch)
            for header, batch in stored
            if header.next_offset > offset and header.base_offset < STABLE
        ][: self._at_once]
        end = served[-1][0].next_offset if served else 0
        aborted = [
            AbortedTransaction(producer, first)
            for producer, first, at in self._aborted
            if at >= offset and first < end
        ]
        data = PartitionData(
            high_watermark=END,
            last_stable_offset=STABLE,
            log_start_offset=0,
            aborted_transactions=aborted,
            records=b"".join(batch for _, batch in served),
        )
        return SimpleNamespace(error_code=0, responses=[SimpleNamespace(partitions=[data])])

    def call(self, request: object) -> Any:
        """OffsetForLeaderEpoch: the first epoch goes on."""
        ended = EpochEndOffset(partition=0, leader_epoch=0, end_offset=END)
        return SimpleNamespace(topics=[SimpleNamespace(partitions=[ended])])


class Reader(RangeReader):
    leader: FakeLeader

    def _leader(self, partition: TopicPartition) -> Any:
        return self.leader


def offsets_of(leader: FakeLeader, start: int, end: int) -> list[int]:
    reader = Reader(COMMITTED)
    reader.leader = leader
    return [
        offset
        for batches in reader.read(OffsetRange(PLACE, start, end))
        for columns in decode(batches, headers=False)
        for offset in columns.offset.tolist()
    ]


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
def test_any_range_has_what_was_committed(at_once: int) -> None:
    """It may begin and end on a marker, inside an aborted batch, or hold nothing else."""
    for start in range(STABLE):
        for end in range(start + 1, STABLE + 1):
            found = offsets_of(FakeLeader(LOG, at_once=at_once), start, end)
            assert found == [at for at in IS_COMMITTED if start <= at < end], (start, end)


def test_a_range_whose_end_was_compacted() -> None:
    """The last marker below the open transaction is gone, so no batch shows that it was passed."""
    log = [records(2, -1), records(10, 7), records(13, 10)]
    leader = FakeLeader(log, at_once=100, aborted=ABORTED[1:])
    assert offsets_of(leader, 0, STABLE) == [2, 10]
    assert leader.fetches == [0, 11, 11], "asked twice"
    assert offsets_of(leader, 11, 12) == []


def test_beyond_an_open_transaction_there_is_nothing_to_read() -> None:
    leader = FakeLeader(LOG, at_once=100)
    with pytest.raises(PipelineError, match=r"open since offset 13.*moldau transactions list"):
        offsets_of(leader, 0, END)


def test_the_lake_has_aborted_batches_and_no_aborted_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = FakeLeader(LOG, at_once=2)
    monkeypatch.setattr(Reader, "leader", leader, raising=False)
    monkeypatch.setattr(archive_task, "RangeReader", Reader)
    # In two ranges, of which the second begins inside the aborted batch of producer 9.
    work = tuple(ArchiveRange(OffsetRange(PLACE, *ends), 0, 0) for ends in ((0, 8), (8, STABLE)))
    result = run_task(ArchiveTask(str(tmp_path), COMMITTED, work))
    assert result.records == len(IS_COMMITTED)
    assert not result.unreadable

    def rows(table: str, *columns: str) -> list[tuple[Any, ...]]:
        found = [
            row
            for file in result.files
            if file.table == table
            for row in pq.ParquetFile(tmp_path / table / file.path).read().to_pylist()
        ]
        return sorted(tuple(row[name] for name in columns) for row in found)

    assert rows(RECORDS, "offset", "key") == [(at, b"k%d" % at) for at in IS_COMMITTED]
    below = [batch for batch in LOG if read_header(batch).base_offset < STABLE]
    assert rows(BATCHES, "base_offset", "data") == [
        (read_header(batch).base_offset, batch) for batch in below
    ]
    assert rows(BATCHES, "base_offset", "control", "aborted", "record_count") == [
        (0, False, True, 2),
        (2, False, False, 1),
        (3, False, False, 1),
        (4, False, True, 1),
        (5, True, False, 1),
        (6, True, False, 1),
        (7, False, True, 3),
        (10, False, False, 2),
        (12, True, False, 1),
    ]
