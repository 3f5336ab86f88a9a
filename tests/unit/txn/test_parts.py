"""The small parts: numbers, records, views."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.txn.record import (
    FORMAT,
    GROUP_OFFSETS,
    LAST,
    NO_NUMBER,
    TxnPartition,
    TxnRecord,
    TxnState,
    UnknownRecordFormat,
    decode,
    encode,
    group_offsets_partition,
    is_after,
    next_number,
)

numbers = st.integers(1, LAST)


def test_numbers_begin_at_1_and_wrap_to_1() -> None:
    assert next_number(NO_NUMBER) == 1
    assert next_number(1) == 2
    assert next_number(LAST - 1) == LAST == 2**31 - 1
    assert next_number(LAST) == 1


@pytest.mark.parametrize(
    ("a", "b", "after"),
    [
        (1, NO_NUMBER, True),
        (LAST, NO_NUMBER, True),
        (NO_NUMBER, 1, False),
        (NO_NUMBER, NO_NUMBER, False),
        (2, 1, True),
        (1, 2, False),
        (1, 1, False),
        (1, LAST, True),
        (LAST, 1, False),
        (5, LAST - 5, True),
        (2**30, 1, True),  # half of the circle
        (2**30 + 1, 1, False),
    ],
)
def test_which_number_is_after_which(a: int, b: int, after: bool) -> None:
    assert is_after(a, b) is after


@given(numbers, numbers)
def test_of_two_numbers_one_is_after_the_other(a: int, b: int) -> None:
    assert is_after(a, b) + is_after(b, a) == (a != b)


@given(numbers, st.integers(1, 100))
def test_a_later_number_is_after_an_earlier_one(number: int, steps: int) -> None:
    later = number
    for _ in range(steps):
        later = next_number(later)
    assert 1 <= later <= LAST
    assert is_after(later, number)
    assert not is_after(number, later)


RECORD = TxnRecord(
    transactional_id="payments:1",
    revision=9,
    state=TxnState.PREPARE_COMMIT,
    producer_id=2**40,
    producer_epoch=32_767,
    timeout_ms=60_000,
    updated_ms=1_700_000_000_500,
    last_producer_epoch=32_766,
    previous_producer_id=2**40,
    next_producer_id=2**40 + 1,
    started_ms=1_700_000_000_000,
    number=2**31 - 1,
    client_version=2,
    partitions=(TxnPartition("orders", bytes(range(16)), 3), group_offsets_partition(41)),
)


def test_a_record_comes_back_as_it_was() -> None:
    back = decode(encode(RECORD))
    assert back == RECORD
    assert type(back.partitions[0]) is TxnPartition
    assert back.partitions[1] == (GROUP_OFFSETS, bytes(16), 41)


def test_partitions_are_stored_under_the_name_that_earlier_versions_read() -> None:
    stored = msgspec.msgpack.decode(encode(RECORD))
    assert [name for name in stored if name.startswith("p")] == [
        "producer_id",
        "producer_epoch",
        "previous_producer_id",
        "places",
    ]


def test_a_record_of_a_newer_version_is_refused() -> None:
    with pytest.raises(UnknownRecordFormat):
        decode(encode(msgspec.structs.replace(RECORD, format=FORMAT + 1)))


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x80", encode(RECORD)[:-1]])
def test_what_is_no_record(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(data)


def test_states_have_kafkas_names() -> None:
    assert [state.value for state in TxnState] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
    ]
