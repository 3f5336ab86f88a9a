"""What the proofs of exactly once take for committed."""

from __future__ import annotations

import pytest

from moldau.broker.wire.batch import TRANSACTIONAL
from moldau.broker.wire.control import EndMarker, build_end_marker
from moldau.broker.wire.records import Record
from tests.support.proofs.committed import Transactions
from tests.support.raw.record_batches import batch_of

NOW = 1_000


def batch(producer: int, value: bytes) -> bytes:
    if producer < 0:
        return bytes(batch_of([Record(0, NOW, None, value)]))
    return bytes(
        batch_of(
            [Record(0, NOW, None, value)],
            attributes=TRANSACTIONAL,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
        )
    )


def marker(producer: int, number: int, *, commit: bool) -> bytes:
    return bytes(build_end_marker(producer, 0, EndMarker(commit, number), NOW))


def test_values_are_in_the_order_of_the_log() -> None:
    """Not of the markers: those of two transactions may come in either order."""
    read = Transactions(
        batch(1, b"a")
        + batch(2, b"b")
        + batch(-1, b"c")
        + marker(2, 1, commit=True)
        + marker(1, 1, commit=True)
    )
    assert read.committed == [b"a", b"b", b"c"]
    assert not read.aborted
    assert not read.open


def test_aborted_and_open_ones_are_apart() -> None:
    read = Transactions(
        batch(1, b"a")
        + batch(2, b"b")
        + marker(1, 1, commit=False)
        + batch(1, b"c")
        + marker(1, 2, commit=True)
    )
    assert read.committed == [b"c"]
    assert read.aborted == [b"a"]
    assert read.open == {2: [b"b"]}
    read.check_markers()


def test_a_second_marker_of_one_transaction_is_found() -> None:
    read = Transactions(batch(1, b"a") + marker(1, 1, commit=True) + marker(1, 1, commit=True))
    with pytest.raises(AssertionError, match="after number 1"):
        read.check_markers()
