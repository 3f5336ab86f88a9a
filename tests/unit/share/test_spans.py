"""What a run of batches holds, by their headers (9.17, 9.24, 9.26)."""

from __future__ import annotations

import struct

import pytest

from moldau.broker.share.spans import holding, read_of
from moldau.broker.wire.batch import CONTROL, HEADER, TRANSACTIONAL, CorruptBatch


def batch(first: int, last: int, attributes: int = 0, producer_id: int = -1) -> bytes:
    body = b"r" * (last - first + 1)
    length = 49 + len(body)
    head = (first, length, 0, 2, 0, attributes, last - first, 0, 0, producer_id, 0, 0, 1)
    return HEADER.pack(*head) + body


def seen(*batches: bytes, first: int = 0, aborted: list[tuple[int, int]] | None = None) -> object:
    read = read_of(first, 0, [b"".join(batches)], aborted or [])
    return [(span.first, span.last, span.is_delivered) for span in read.spans]


def test_9_17_control_batches_are_not_delivered() -> None:
    log = [batch(0, 4), batch(5, 5, CONTROL | TRANSACTIONAL, 7), batch(6, 9)]
    assert seen(*log) == [(0, 4, True), (5, 5, False), (6, 9, True)]
    assert seen(*log, first=5) == [(5, 5, False), (6, 9, True)]


def test_9_26_aborted_batches_are_those_of_the_producer_up_to_its_marker() -> None:
    marker = CONTROL | TRANSACTIONAL
    log = [
        batch(0, 1, TRANSACTIONAL, 7),  # committed, below the aborted transaction
        batch(2, 2, marker, 7),
        batch(3, 4, TRANSACTIONAL, 7),
        batch(5, 6, TRANSACTIONAL, 8),
        batch(7, 7, 0, 7),  # not in a transaction
        batch(8, 8, marker, 7),
        batch(9, 9, TRANSACTIONAL, 7),
        batch(10, 11, TRANSACTIONAL, 8),
    ]
    delivered = [first for first, _, ok in seen(*log, aborted=[(7, 3)]) if ok]  # type: ignore[attr-defined]
    assert delivered == [0, 5, 7, 9, 10]
    delivered = [first for first, _, ok in seen(*log, aborted=[(7, 3), (8, 5)]) if ok]  # type: ignore[attr-defined]
    assert delivered == [0, 7, 9]
    # Read from the middle of the transaction.
    delivered = [first for first, _, ok in seen(*log[3:], first=4, aborted=[(7, 3)]) if ok]  # type: ignore[attr-defined]
    assert delivered == [5, 7, 9, 10]


def test_9_24_only_batches_with_acquired_records_are_sent() -> None:
    one, two, three, four = batch(0, 9), batch(10, 19), batch(20, 29), batch(30, 39)
    read = read_of(0, 40, [one + two, three + four])

    def sent(*ranges: tuple[int, int]) -> list[bytes]:
        return [bytes(piece) for piece in holding(read, [(a, b, 1) for a, b in ranges])]

    assert sent((0, 39)) == [one + two, three + four]
    assert sent((5, 5)) == [one]
    assert sent((9, 10)) == [one + two]
    assert sent((0, 2), (4, 6), (8, 9), (11, 12)) == [one + two]
    assert sent((15, 15), (35, 36)) == [two, four]
    assert sent((1, 1), (3, 3), (25, 25)) == [one, three]
    assert sent() == []


def test_a_read_covers_the_batches_in_it() -> None:
    assert read_of(3, 5, [batch(0, 9)]).end == 10
    assert read_of(3, 50, [batch(0, 9)]).end == 50
    assert read_of(3, 9, []) == (3, 9, [], [])


@pytest.mark.parametrize("size", [1, 60, 65])
def test_what_is_cut_off_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptBatch):
        read_of(0, 0, [batch(0, 9) + batch(10, 19)[:size]])


def test_lengths_that_lead_backwards_are_corrupt() -> None:
    damaged = bytearray(batch(0, 9))
    struct.pack_into(">i", damaged, 8, -5)
    with pytest.raises(CorruptBatch):
        read_of(0, 0, [damaged])
