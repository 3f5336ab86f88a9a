"""Laws of the variable-length integers and of the sections of tagged fields."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moldau.broker.wire.primitives import (
    TABLE_SIZE,
    UVARINTS,
    MalformedMessage,
    pack_ints,
    pack_tags,
    read_uvarint,
    skip_tag,
    skip_tags,
    unpack_ints,
    uvarint,
)

UINT32 = st.integers(0, (1 << 32) - 1)
# Where the encoding grows by a byte.
BOUNDARIES = [(1 << bits) + step for bits in (7, 14, 21, 28) for step in (-1, 0)]


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2097152, "80808001"),
        (268435456, "8080808001"),
        ((1 << 32) - 1, "ffffffff0f"),
    ],
)
def test_known_varints(value: int, encoded: str) -> None:
    assert uvarint(value).hex() == encoded
    assert read_uvarint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@given(value=st.one_of(UINT32, st.sampled_from(BOUNDARIES)), before=st.binary(max_size=4))
def test_a_varint_comes_back_and_nothing_after_it_is_read(value: int, before: bytes) -> None:
    encoded = uvarint(value)
    assert len(encoded) == max(1, -(-value.bit_length() // 7))
    for frame in (before + encoded + b"\xff", bytearray(before + encoded + b"\xff")):
        assert read_uvarint(frame, len(before)) == (value, len(before) + len(encoded))


@given(value=UINT32, cut=st.integers(1, 5))
def test_a_varint_that_is_cut_off_runs_off_the_end(value: int, cut: int) -> None:
    encoded = uvarint(value)[:-cut]
    with pytest.raises(IndexError):  # generated codecs turn it into MalformedMessage
        read_uvarint(encoded, 0)


@given(value=st.integers(0, (1 << 28) - 1), padding=st.integers(1, 4))
def test_a_varint_longer_than_needed_is_read_all_the_same(value: int, padding: int) -> None:
    encoded = uvarint(value)
    longer = bytearray(encoded[:-1]) + bytes([encoded[-1] | 0x80]) + b"\x80" * (padding - 1) + b"\0"
    if len(longer) <= 5:
        assert read_uvarint(longer, 0) == (value, len(longer))
    else:
        with pytest.raises(MalformedMessage):
            read_uvarint(longer, 0)


@pytest.mark.parametrize("encoded", ["ffffffff10", "808080808001", "ffffffffffffffffff01"])
def test_a_varint_over_32_bits_is_malformed(encoded: str) -> None:
    with pytest.raises(MalformedMessage):
        read_uvarint(bytes.fromhex(encoded), 0)


def test_the_table_of_short_varints() -> None:
    assert len(UVARINTS) == TABLE_SIZE
    assert all(UVARINTS[n] == uvarint(n) for n in range(TABLE_SIZE))


TAGS = st.lists(st.tuples(UINT32, st.binary(max_size=300)), max_size=200)


@given(tags=TAGS, after=st.binary(max_size=3))
@example(tags=[(n, b"") for n in range(130)], after=b"")  # a count of two bytes
def test_tags_are_packed_behind_their_count_and_skipped(
    tags: list[tuple[int, bytes]], after: bytes
) -> None:
    packed = pack_tags([(tag, [value[:1], value[1:]]) for tag, value in tags])
    frame = packed + after
    count, position = read_uvarint(frame, 0)
    assert count == len(tags)
    assert skip_tags(frame, position, len(frame), count) == len(packed)
    for tag, value in tags:
        read_tag, begin, end = skip_tag(frame, position, len(frame))
        assert (read_tag, frame[begin:end]) == (tag, value)
        position = end


@given(tag=UINT32, size=st.integers(1, (1 << 32) - 1), have=st.integers(0, 50))
def test_a_tagged_field_longer_than_what_is_left_is_malformed(
    tag: int, size: int, have: int
) -> None:
    frame = uvarint(tag) + uvarint(size) + bytes(have)
    if size > have:
        with pytest.raises(MalformedMessage):
            skip_tags(frame, 0, len(frame), 1)
    else:
        assert skip_tags(frame, 0, len(frame), 1) == len(frame) - have + size


@given(count=st.integers(1, (1 << 32) - 1))
def test_an_absurd_count_of_tags_ends_with_the_frame(count: int) -> None:
    frame = bytes(64)  # 32 empty fields
    if count <= 32:
        assert skip_tags(frame, 0, len(frame), count) == 2 * count
    else:
        with pytest.raises(IndexError):
            skip_tags(frame, 0, len(frame), count)


@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=300))
def test_arrays_of_integers(values: list[int]) -> None:
    packed = pack_ints("i", values)
    assert packed == b"".join(struct.pack(">i", value) for value in values)
    assert unpack_ints("i", 4, b"\xff" + packed + b"\xff", 1, len(values)) == values
