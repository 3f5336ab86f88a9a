"""Records as fields of an entry, and entries that others wrote as records."""

import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.log.native.fields import Content, as_json, from_fields, to_fields
from moldau.broker.wire.records import NO_HEADERS, Record, encode_headers

some_bytes = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(max_size=8), some_bytes), max_size=4)
names = st.binary(min_size=1, max_size=6)
foreign = st.lists(st.tuples(names, st.binary(max_size=12)), min_size=1, max_size=6)


def flat(pairs: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [word for pair in pairs for word in pair]


@given(st.integers(-1, 1 << 55), some_bytes, some_bytes, headers)
def test_a_record_comes_back_as_it_was(
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    named: list[tuple[str, bytes | None]],
) -> None:
    packed = encode_headers(named) if named else NO_HEADERS

    fields = to_fields(Record(7, timestamp, key, value, packed))

    assert from_fields(fields) == Content(timestamp, key, value, packed)


def test_null_is_not_empty() -> None:
    assert to_fields(Record(0, 5, None, b"", NO_HEADERS)) == [b"value", b"", b"timestamp", b"5"]
    assert from_fields([b"key", b""]) == Content(None, b"", None, NO_HEADERS)
    assert from_fields([b"value", b""]).value == b""


def test_headers_with_the_same_name_stay_in_order() -> None:
    packed = encode_headers([("a", b"1"), ("b", None), ("a", b""), ("ü", b"\xff")])

    fields = to_fields(Record(0, 5, None, None, packed))

    assert fields[2:] == [
        *(b"header.a", b"1", b"null-header.b", b"", b"header.a", b""),
        *("header.ü".encode(), b"\xff"),
    ]
    assert from_fields(fields).headers == packed


def test_fields_of_others_are_a_json_object() -> None:
    found = from_fields([b"name", b"Eliska", b"key", b"k", b"note", "žluť".encode()])

    assert found == Content(
        None, None, '{"name":"Eliska","key":"k","note":"žluť"}'.encode(), NO_HEADERS
    )


def test_a_timestamp_that_is_none_is_a_field_like_others() -> None:
    found = from_fields([b"value", b"v", b"timestamp", b"yesterday"])

    assert found.timestamp is None
    assert found.value == b'{"value":"v","timestamp":"yesterday"}'


def test_a_timestamp_of_others_is_the_records() -> None:
    assert from_fields([b"a", b"1", b"timestamp", b"1700000000000"]).timestamp == 1700000000000


@given(foreign)
def test_any_fields_can_be_read_back_from_the_json(pairs: list[tuple[bytes, bytes]]) -> None:
    read = json.loads(as_json(flat(pairs)))

    wanted: dict[str, list[bytes]] = {}
    for name, value in pairs:
        wanted.setdefault(_readable(name), []).append(value)
    assert {name: _values(found) for name, found in read.items()} == wanted


def _readable(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(name).decode()


def _values(found: Any) -> list[bytes]:
    several = found if isinstance(found, list) else [found]
    return [
        base64.b64decode(one["base64"]) if isinstance(one, dict) else one.encode()
        for one in several
    ]


def test_the_field_a_topic_names_is_the_value() -> None:
    fields = [b"key", b"k", b"json", b"{}", b"other", b"x", b"header.h", b"1"]

    assert from_fields(fields, b"json") == Content(None, b"k", b"{}", encode_headers([("h", b"1")]))
    assert from_fields([b"other", b"x"], b"json").value is None
    assert from_fields([b"value", b"v", b"key", b"k"], b"value").value == b"v"


@given(st.lists(st.binary(max_size=9), max_size=12).filter(lambda one: len(one) % 2 == 0), names)
def test_whatever_is_in_an_entry_can_be_delivered(fields: list[bytes], chosen: bytes) -> None:
    for field in (None, chosen):
        found = from_fields(fields, field)
        assert found.timestamp is None or -1 <= found.timestamp < 1 << 63
