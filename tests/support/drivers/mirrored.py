"""Chunks of a mirror, appended to a log at their own offsets; and random logs to mirror."""

from __future__ import annotations

import asyncio
import random

from moldau.broker.log.partition import PartitionLog
from moldau.broker.log.writing.mirrored import MirroredChunk
from moldau.broker.wire.batch import TRANSACTIONAL, set_base_offset
from moldau.broker.wire.control import EndMarker, build_end_marker
from moldau.broker.wire.records import Record, build_batch

NOW = 1_700_000_000_000


class WaitedChunk(MirroredChunk):
    """A chunk whose outcome can be awaited."""

    __slots__ = ("outcome",)

    def __init__(self, data: bytes, at: int) -> None:
        super().__init__(bytearray(data), at)
        self.outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(self, error: BaseException | None, base_offset: int, timestamp: int) -> None:
        if error is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(base_offset)


async def mirror(log: PartitionLog, at: int, *batches: bytes) -> int:
    """Append batches where the log ends at `at`; returns `at`."""
    chunk = WaitedChunk(b"".join(batches), at)
    log.append(chunk)
    return await chunk.outcome


def batch_at(
    base: int,
    offsets: list[int],
    *,
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
    key: bytes | None = None,
    last: int | None = None,
    timestamp: int | None = None,
) -> bytes:
    """A batch of the source from `base` on with records at these offsets, the rest compacted away.
    `producer`: id, epoch, first sequence."""
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    records = [
        Record(at, at * 10 if timestamp is None else timestamp, key or b"k%d" % at, b"v%d" % at)
        for at in offsets
    ]
    batch = build_batch(
        records,
        base_offset=base,
        last_offset=offsets[-1] if last is None else last,
        attributes=TRANSACTIONAL if transactional else 0,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        leader_epoch=9,
    )
    return bytes(batch)


def marker_at(offset: int, producer_id: int, *, commit: bool, epoch: int = 0) -> bytes:
    """Kafka's markers carry the epoch of their coordinator, mostly the same one."""
    batch = build_end_marker(producer_id, epoch, EndMarker(commit, 3), NOW)
    set_base_offset(batch, offset, 9)
    return bytes(batch)


def random_log(rng: random.Random, batches: int = 30, start: int = 0) -> list[bytes]:
    """The batches of a log as a source may have it: it begins at `start`, was compacted in part,
    and has idempotent and transactional producers."""
    found: list[bytes] = []
    at = start
    sequences: dict[int, int] = {}
    open_: set[int] = set()
    for _ in range(batches):
        at += rng.choice((0, 0, 0, 1, 5, 1000))
        length = rng.randint(1, 5)
        offsets = sorted(rng.sample(range(at, at + length), rng.randint(1, length)))
        kind = rng.randrange(4)
        if kind == 0:
            found.append(batch_at(at, offsets, last=at + length - 1))
        elif kind == 3 and open_:
            producer_id = rng.choice(sorted(open_))
            open_.discard(producer_id)
            found.append(marker_at(at, producer_id, commit=rng.random() < 0.5))
            length = 1
        else:
            producer_id = rng.randint(1, 2) + (10 if kind == 2 else 0)
            sequence = sequences.get(producer_id, 0)
            sequences[producer_id] = sequence + length
            found.append(
                batch_at(
                    at,
                    offsets,
                    last=at + length - 1,
                    producer=(producer_id, 0, sequence),
                    transactional=kind == 2,
                )
            )
            if kind == 2:
                open_.add(producer_id)
        at += length
    return found
