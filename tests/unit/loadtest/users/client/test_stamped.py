"""The load test's check of what it reads: correct logs pass, and violations are named."""

import struct

import pytest

from moldau.broker.wire.batch import CRC_AT, HEADER_SIZE, checksum
from moldau.broker.wire.codecs import CODEC_NAMES
from moldau.loadtest.users.client.stamped import (
    MIN_VALUE_BYTES,
    PartitionCheck,
    Stamp,
    new_name,
    read_stamp,
    stamped_batch,
    stamped_value,
)

NAME, OTHER = b"producer", b"anotherp"


def placed(offset: int, first: int, count: int = 3, name: bytes = NAME, codec: int = 0) -> bytes:
    """A batch of records numbered from `first` on, at an offset of the log."""
    batch = bytearray(stamped_batch(name, first, count, 100, 0, codec))
    struct.pack_into(">q", batch, 0, offset)
    return bytes(batch)


def test_a_value_names_its_producer() -> None:
    stamp = Stamp(new_name(), 7, 123)
    value = stamped_value(stamp, 200)
    assert len(value) == 200
    assert read_stamp(value) == stamp
    assert len(stamped_value(stamp, 1)) == MIN_VALUE_BYTES


def test_a_flipped_bit_of_a_value_shows() -> None:
    value = stamped_value(Stamp(new_name(), 7, 123), 60)
    for at in range(len(value)):
        damaged = bytearray(value)
        damaged[at] ^= 1
        assert read_stamp(bytes(damaged)) is None, at
    assert read_stamp(None) is None
    assert read_stamp(b"something else") is None


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_whole_log_passes(codec: str) -> None:
    check = PartitionCheck("topic-0", 0)
    number = CODEC_NAMES[codec]
    blob = placed(0, 0, codec=number) + placed(3, 0, name=OTHER, codec=number)
    assert check.feed(blob) == []
    assert check.feed(placed(6, 3, codec=number)) == []
    assert (check.position, check.records) == (9, 9)
    assert check.last == Stamp(NAME, 5, 0)


def test_a_fetch_may_begin_before_the_offset_asked_for() -> None:
    check = PartitionCheck("topic-0", 4)
    assert check.feed(placed(3, 0)) == []
    assert (check.position, check.records) == (6, 2)


def test_numbering_is_learned_in_the_middle_of_a_log() -> None:
    check = PartitionCheck("topic-0", 100)
    assert check.feed(placed(100, 50)) == []
    assert check.feed(placed(103, 54)) == [
        "lost: topic-0 offset 103, producer 70726f6475636572: records 53-53 are missing"
    ]


def only(faults: list[str]) -> str:
    (fault,) = faults
    return fault


def test_a_hole_in_the_offsets() -> None:
    check = PartitionCheck("topic-0", 0)
    check.feed(placed(0, 0))
    assert only(check.feed(placed(5, 3))) == "lost: topic-0 offsets 3-4 are missing"
    assert check.feed(placed(8, 6)) == []  # each is reported once


def test_a_hole_inside_a_batch() -> None:
    batch = bytearray(placed(0, 0))
    struct.pack_into(">i", batch, 23, 4)  # it covers five offsets, and has three records
    struct.pack_into(">I", batch, CRC_AT, checksum(batch))
    fault = only(PartitionCheck("topic-0", 0).feed(batch))
    assert fault == "lost: topic-0 offsets 3-4 are missing inside a batch"


def test_a_record_that_is_not_in_the_log() -> None:
    """Offsets are dense whatever is lost before it gets one: the numbers are not."""
    check = PartitionCheck("topic-0", 0)
    check.feed(placed(0, 0))
    assert "records 3-5 are missing" in only(check.feed(placed(3, 6)))


def test_the_first_record_of_a_producer_is_missed_from_the_start_on() -> None:
    assert "records 0-0 are missing" in only(PartitionCheck("topic-0", 0).feed(placed(0, 1)))


def test_a_batch_that_comes_twice() -> None:
    check = PartitionCheck("topic-0", 0)
    check.feed(placed(0, 0))
    assert only(check.feed(placed(0, 0))).startswith("duplicated: topic-0 offsets 0-2 again")


def test_a_batch_that_was_appended_twice() -> None:
    check = PartitionCheck("topic-0", 0)
    check.feed(placed(0, 0))
    faults = check.feed(placed(3, 0))
    assert len(faults) == 3
    assert all(fault.startswith("duplicated or reordered: topic-0") for fault in faults)
    assert check.feed(placed(6, 3)) == []


def test_batches_in_the_wrong_order() -> None:
    check = PartitionCheck("topic-0", 0)
    check.feed(placed(0, 0))
    first, *others = check.feed(placed(3, 6) + placed(6, 3))
    assert "records 3-5 are missing" in first
    assert [fault.partition(":")[0] for fault in others] == ["duplicated or reordered"] * 3


def test_a_flipped_byte_of_a_batch() -> None:
    damaged = bytearray(placed(0, 0))
    damaged[HEADER_SIZE + 40] ^= 0x10
    check = PartitionCheck("topic-0", 0)
    assert only(check.feed(damaged)) == "damaged: topic-0 batch at 0 fails its checksum"
    assert check.position == 3


def test_a_flipped_byte_under_a_recomputed_checksum() -> None:
    damaged = bytearray(placed(0, 0))
    damaged[HEADER_SIZE + 60] ^= 0x10
    struct.pack_into(">I", damaged, CRC_AT, checksum(damaged))
    first, second = PartitionCheck("topic-0", 0).feed(damaged)
    assert first == "damaged: topic-0 record at 0 fails its checksum"
    assert "records 0-0 are missing" in second  # its producer is unknown


def test_what_is_no_batch() -> None:
    fault = only(PartitionCheck("topic-0", 0).feed(b"not a batch"))
    assert fault.startswith("damaged: topic-0 at offset 0")
