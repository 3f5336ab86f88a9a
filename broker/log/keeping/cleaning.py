"""Compaction as pure functions: which records of a compacted topic stay, and the batches left.

Two passes over the batches of a partition, in offset order; the caller does the I/O:

1. `KeyMap.note` each batch, up to where the pass is to end or the map has no room.
2. `clean` each batch from the start of the log to there, and store what it returns. In offset
   order, so that a tombstone outlives what it deletes if the pass is cut short.

What stays is decided as Kafka's log cleaner does:

- Of each key the record with the highest offset. Records keep their offsets and timestamps,
  a batch keeps its range of offsets and its producer id, epoch and sequence.
- No record without a key: a topic that was not always compacted may have some.
- A tombstone (null value) for `delete.retention.ms` after the first pass that saw it, so that
  consumers learn of the deletion. That pass writes the time into the batch as its delete
  horizon; a later pass drops the tombstones of a batch whose horizon has come.
- Nothing of an aborted transaction: its batches do not count at all (`AbortedBatches`). What was
  committed stays transactional, as readers take it for committed unless it is listed as aborted.
- No control batch. What a marker says is in a snapshot then; Kafka, which folds the
  segments themselves, has to keep them for a while.
- A batch without a record goes. One that loses nothing comes back as the same object.

A damaged batch raises CorruptBatch from either pass, before anything is noted of it.

A batch of ten thousand records takes 50 ms. Both passes are generators that yield after less than a
millisecond of work, so that the caller can let the event loop run in between.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Generator, Iterable
from hashlib import blake2b
from itertools import islice

from moldau.broker.store.aborted import AbortedTransaction
from moldau.broker.wire.batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    read_header,
)
from moldau.broker.wire.records import Record, build_batch, encode_records, iter_records

_DIGEST = 16
_FREE = bytes(_DIGEST)
_LAST_MOMENT = (1 << 63) - 1  # `delete.retention.ms` may be as large, for "never"
_STEP = 64  # records


class KeyMap:
    """The highest offset of each key, in 36 bytes a key whatever the key's size.

    An open-addressing table of 16-byte digests beside one of offsets, half as large again as
    the number of keys it is made for (a dict of the same takes about 180 bytes a key). It
    does not grow, as that would be one long pause: make it for as many keys as the range of
    offsets can hold, or as memory allows, and end the pass where `note` finds no room.

    Two keys with the same digest would be taken for one. At 128 bits that does not happen.
    """

    def __init__(self, capacity: int) -> None:
        self.last_offset = -1  # the log was noted up to here
        self._used = 0
        self._allocate(capacity)

    def __len__(self) -> int:
        return self._used

    def note(
        self, batch: Buffer, limit: int, payload: bytes | None = None
    ) -> Generator[None, None, bool]:
        """Remember the keys of the next batch; False, and nothing noted, if there is no room.

        There is always room for the first batch, so that every pass makes progress. `payload`: what
        the batch unpacks to, if that is known already.
        """
        header = read_header(batch)
        if not header.attributes & CONTROL:
            records = yield from _read_in_steps(batch, limit, payload)
            if self._used + len(records) > self._capacity:
                if self._used:
                    return False
                self._allocate(len(records))
            for at in range(0, len(records), _STEP):
                self._put(records[at : at + _STEP])
                yield
        self.last_offset = header.next_offset - 1
        return True

    def newest(self, key: bytes) -> int:
        """The highest offset noted for the key, -1 for none."""
        digests, slots = self._digests, self._slots
        digest = blake2b(key, digest_size=_DIGEST).digest()
        slot = hash(digest) % slots
        while (found := digests[slot * _DIGEST : (slot + 1) * _DIGEST]) != digest:
            if found == _FREE:
                return -1
            slot = (slot + 1) % slots
        return self._offsets[slot]

    def _put(self, records: list[Record]) -> None:
        digests, offsets, slots = self._digests, self._offsets, self._slots
        for record in records:
            if record.key is None:
                continue
            digest = blake2b(record.key, digest_size=_DIGEST).digest()
            # Python's salted hash() is good enough, as the table never leaves this process, and
            # defeats keys chosen to collide.
            slot = hash(digest) % slots
            while (found := digests[slot * _DIGEST : (slot + 1) * _DIGEST]) != digest:
                if found == _FREE:
                    digests[slot * _DIGEST : (slot + 1) * _DIGEST] = digest
                    self._used += 1
                    break
                slot = (slot + 1) % slots
            offsets[slot] = record.offset

    def _allocate(self, capacity: int) -> None:
        self._capacity = capacity
        self._slots = capacity + capacity // 2 + 1  # never full, so that every search ends
        self._digests = bytearray(_DIGEST * self._slots)
        self._offsets = array("q", [0]) * self._slots


class AbortedBatches:
    """Which batches of a range of offsets belong to aborted transactions.

    `aborted`: all that reach into the range, in the order of their first offsets.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        # By producer, which has one transaction after the other: first offsets, and markers.
        self._spans: dict[int, tuple[array[int], array[int]]] = {}
        for transaction in aborted:
            spans = self._spans.get(transaction.producer_id)
            if spans is None:
                spans = self._spans[transaction.producer_id] = (array("q"), array("q"))
            spans[0].append(transaction.first)
            spans[1].append(transaction.marker)

    def have(self, header: BatchHeader) -> bool:
        if not header.attributes & TRANSACTIONAL:
            return False
        spans = self._spans.get(header.producer_id)
        if spans is None:
            return False
        firsts, markers = spans
        at = bisect_right(firsts, header.base_offset) - 1
        return at >= 0 and header.base_offset < markers[at]


def clean(
    batch: Buffer,
    keys: KeyMap,
    *,
    now_ms: int,
    delete_retention_ms: int,
    limit: int,
    codec: int | None = None,
    level: int | None = None,
    payload: bytes | None = None,
) -> Generator[None, None, Buffer | None]:
    """What stays of a batch: itself, a smaller one, or None for nothing.

    A batch that has to be rebuilt is compressed with `codec`, by default with its own. A generator:
    the result is its return value.
    """
    header = read_header(batch)
    if header.next_offset - 1 > keys.last_offset:
        return batch
    if header.attributes & CONTROL:
        return None

    horizon = header.base_timestamp if header.attributes & DELETE_HORIZON else None
    tombstones_stay = horizon is None or now_ms < horizon
    records = yield from _read_in_steps(batch, limit, payload)
    kept: list[Record] = []
    for at in range(0, len(records), _STEP):
        kept += [
            record
            for record in records[at : at + _STEP]
            if record.key is not None
            and record.offset >= keys.newest(record.key)
            and (tombstones_stay or record.value is not None)
        ]
        yield
    if not kept:
        return None

    first_seen = horizon is None and any(record.value is None for record in kept)
    if first_seen:
        horizon = min(now_ms + delete_retention_ms, _LAST_MOMENT)
    elif len(kept) == len(records):
        return batch

    base_offset = header.base_offset
    base_timestamp = kept[0].timestamp if horizon is None else horizon
    pieces: list[bytes] = []
    for at in range(0, len(kept), _STEP):
        pieces.append(encode_records(kept[at : at + _STEP], base_offset, base_timestamp))
        yield
    return build_batch(
        kept,
        base_offset=base_offset,
        last_offset=header.next_offset - 1,
        codec=header.attributes & CODEC_MASK if codec is None else codec,
        level=level,
        attributes=header.attributes,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.leader_epoch,
        delete_horizon_ms=horizon,
        payload=b"".join(pieces),
    )


def _read_in_steps(
    batch: Buffer, limit: int, payload: bytes | None
) -> Generator[None, None, list[Record]]:
    following = iter_records(batch, limit, payload)
    records: list[Record] = []
    while step := list(islice(following, _STEP)):
        records += step
        yield
    return records
