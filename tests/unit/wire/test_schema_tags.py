"""Tagged fields of declared messages."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moldau.broker.wire.codegen.compiler import codec
from moldau.broker.wire.primitives import MalformedMessage, uvarint
from moldau.broker.wire.schema import (
    F,
    Int32,
    Message,
    String,
)
from tests.unit.wire.schema_messages import Inner, Named, decode, encode

# --- tagged fields ------------------------------------------------------------------------------


class Tagged(Message):
    first: Annotated[Int32, F(tag=0)] = -1
    second: Annotated[String | None, F(tag=1)] = None
    third: Annotated[Inner | None, F(tag=9)] = None


TAGGED = codec(Tagged, 1, True)
FIELDS: dict[int, tuple[str, Any, bytes]] = {
    0: ("first", 77, bytes.fromhex("0000004d")),
    1: ("second", "zwei", b"\x05zwei"),
    9: ("third", Inner("n", 3, -1), b"\x02n\x00\x03\x00"),
}


def section(entries: list[tuple[int, bytes]]) -> bytes:
    body = b"".join(uvarint(tag) + uvarint(len(value)) + value for tag, value in entries)
    return uvarint(len(entries)) + body


@given(
    known=st.lists(st.sampled_from(sorted(FIELDS)), max_size=6),
    unknown=st.lists(st.tuples(st.integers(10, 1 << 31), st.binary(max_size=200)), max_size=200),
    shuffle=st.randoms(use_true_random=False),
)
@example(known=[0, 0], unknown=[], shuffle=None)
@example(known=[9], unknown=[(n, b"x") for n in range(10, 160)], shuffle=None)
def test_unknown_tags_are_skipped_and_known_ones_come_in_any_order(
    known: list[int], unknown: list[tuple[int, bytes]], shuffle: Any
) -> None:
    """Kafka writes tags in order and once; a reader has no reason to insist on either."""
    entries = [(tag, FIELDS[tag][2]) for tag in known] + unknown
    if shuffle is not None:
        shuffle.shuffle(entries)
    frame = section(entries) + b"rest"
    decoded, end = TAGGED.decode(frame, 0)
    assert end == len(frame) - 4
    assert decoded == Tagged(**{FIELDS[tag][0]: FIELDS[tag][1] for tag in set(known)})


def test_many_tags_where_none_is_known() -> None:
    frame = b"\2x" + section([(n, b"unknown") for n in range(150)])
    assert decode(Named, 1, frame) == (Named("x"), len(frame))


def test_the_last_of_a_tag_given_twice_counts() -> None:
    frame = section([(0, bytes.fromhex("00000001")), (0, bytes.fromhex("00000002"))])
    assert TAGGED.decode(frame, 0)[0] == Tagged(first=2)


def test_a_newer_client_may_have_made_a_tagged_field_longer() -> None:
    frame = section([(0, bytes.fromhex("0000004d") + b"more"), (1, b"\x02x")])
    assert TAGGED.decode(frame, 0) == (Tagged(first=77, second="x"), len(frame))


@pytest.mark.parametrize(
    "entries",
    [
        [(0, b"\0\0\0")],  # too short for what it holds, at the end of the frame
        [(0, b"\0\0\0"), (5, b"ab")],  # and where the next field would be read instead
        [(1, b"\x09zwei"), (5, b"abcdefg")],
        [(9, b"\x02n\x00\x03"), (5, b"")],
    ],
)
def test_a_tagged_field_does_not_reach_into_the_next(entries: list[tuple[int, bytes]]) -> None:
    with pytest.raises(MalformedMessage):
        TAGGED.decode(section(entries), 0)


def test_tags_are_written_in_order_and_only_when_set() -> None:
    assert encode(Tagged(), 1) == b"\0"
    message = Tagged(first=77, second="zwei", third=Inner("n", 3))
    assert encode(message, 1) == section([(tag, FIELDS[tag][2]) for tag in (0, 1, 9)])


def test_fields_of_versions_are_where_they_belong() -> None:
    assert encode(Inner("a", 3, 4), 0) == b"\0\1a"
    assert encode(Inner("a", 3, -1), 1) == b"\2a\0\3\0"
    assert encode(Inner("a", 3, 4), 1) == b"\2a\0\3\1\0\x08" + (4).to_bytes(8, "big")
