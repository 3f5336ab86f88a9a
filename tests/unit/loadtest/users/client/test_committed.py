"""The load test's check of what is committed: aborted records are left out as clients do it."""

from __future__ import annotations

import struct

from moldau.broker.wire.batch import TRANSACTIONAL
from moldau.broker.wire.control import EndMarker, build_end_marker
from moldau.broker.wire.messages.fetch import AbortedTransaction
from moldau.loadtest.users.client.committed import ABORTED, CommittedCheck
from moldau.loadtest.users.client.stamped import PartitionCheck, ProducerSequence, stamped_batch

NAME = b"producer"
COUNT = 2  # records of a batch


def placed(batch: bytes | bytearray, offset: int) -> bytes:
    at = bytearray(batch)
    struct.pack_into(">q", at, 0, offset)
    return bytes(at)


def records(offset: int, producer: int, first: int, name: bytes = NAME) -> bytes:
    sequence = ProducerSequence(producer, 0, 0)
    return placed(stamped_batch(name, first, COUNT, 60, 0, 0, sequence, TRANSACTIONAL), offset)


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    return placed(build_end_marker(producer, 0, EndMarker(commit, 1), 0), offset)


# Producer 7 commits, aborts, commits; producer 8 commits in between.
LOG = [
    records(0, 7, 0),
    marker(2, 7, commit=True),
    records(3, 7, 0, ABORTED),
    records(5, 8, 0, b"anotherp"),
    marker(7, 8, commit=True),
    marker(8, 7, commit=False),
    records(9, 7, 2),
    marker(11, 7, commit=True),
]
LIST = [AbortedTransaction(7, 3)]


def test_what_was_aborted_is_left_out() -> None:
    check = CommittedCheck("t-0", 0)
    assert check.feed(b"".join(LOG), LIST) == []
    assert (check.position, check.records) == (12, 6)


def test_a_response_may_begin_inside_a_transaction() -> None:
    check = CommittedCheck("t-0", 0)
    assert check.feed(b"".join(LOG[:2])) == []
    assert check.feed(b"".join(LOG[2:4]), LIST) == []
    assert check.feed(b"".join(LOG[4:]), LIST) == []  # listed again, as its marker is in it
    assert (check.position, check.records) == (12, 6)


def test_an_aborted_record_that_is_read_is_named() -> None:
    check = CommittedCheck("t-0", 0)
    assert check.feed(b"".join(LOG)) == [
        "aborted: t-0 record at 3 was, and is read",
        "aborted: t-0 record at 4 was, and is read",
    ]
    assert check.position == 12


def test_a_committed_record_that_is_hidden_is_missed() -> None:
    check = CommittedCheck("t-0", 0)
    (violation,) = check.feed(b"".join(LOG), [AbortedTransaction(7, 0), *LIST])
    assert violation == f"lost: t-0 offset 9, producer {NAME.hex()}: records 0-1 are missing"


def test_an_offset_between_transactions_must_not_be_missing() -> None:
    check = CommittedCheck("t-0", 0)
    assert check.feed(b"".join([*LOG[:4], *LOG[5:]]), LIST) == ["lost: t-0 offsets 7-7 are missing"]


def test_markers_are_no_records_for_other_readers() -> None:
    check = PartitionCheck("t-0", 0)
    assert check.feed(b"".join(LOG[:2])) == []
    assert (check.position, check.records) == (3, 2)
