"""Records on their way into entries: however they are handed over, the same fields are written."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moldau.broker.log.native.fields import TooManyWords, to_fields, to_words
from moldau.broker.wire.records import Record, build_batch, encode_headers, record_spans

LIMIT = 1 << 20
NAMES = {b"kvt": (b"key", b"value", b"timestamp"), b"vt": (b"value", b"timestamp")}

some_bytes = st.none() | st.binary(max_size=8)
contents = st.tuples(
    st.integers(-1, 1 << 45),
    some_bytes,
    some_bytes,
    st.lists(st.tuples(st.text(max_size=4), some_bytes), max_size=2),
)


def written(layout: bytes, words: list[bytes | int]) -> list[list[bytes]]:
    """The fields of each entry, as the store's function writes them."""
    entries = []
    at = 0
    while at < len(words):
        if layout == b"any":
            count = words[at]
            assert isinstance(count, int)
            entries.append([bytes(word) for word in words[at + 1 : at + 1 + count]])
            at += 1 + count
        else:
            names = NAMES[layout]
            values = words[at : at + len(names)]
            entries.append(
                [bytes(word) for pair in zip(names, values, strict=True) for word in pair]
            )
            at += len(names)
    return entries


@given(st.lists(contents, min_size=1, max_size=5))
@example([(1, b"k", b"v", []), (2, b"", b"", [])])
@example([(1, None, b"v", []), (1, None, b"w", [])])
@example([(1, None, b"v", []), (1, b"k", b"w", [])])
@example([(1, b"k", b"v", []), (1, b"k", None, [])])
@example([(1, b"k", b"v", []), (1, b"k", b"v", [("h", None)])])
def test_every_layout_writes_the_same_fields(
    made: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
) -> None:
    records = [
        Record(offset, timestamp, key, value, encode_headers(headers))
        for offset, (timestamp, key, value, headers) in enumerate(made)
    ]
    batch = build_batch(records, base_offset=0, last_offset=len(records) - 1)
    layout, words = to_words(*record_spans(batch, LIMIT), most=100)
    assert written(layout, words) == [to_fields(record) for record in records]


@pytest.mark.parametrize(
    ("key", "value", "headers", "layout"),
    [
        (b"k", b"v", [], b"kvt"),
        (None, b"v", [], b"vt"),
        (b"k", None, [], b"any"),
        (b"k", b"v", [("h", b"1")], b"any"),
    ],
)
def test_names_are_left_out_where_all_records_have_the_usual_fields(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], layout: bytes
) -> None:
    record = Record(0, 5, key, value, encode_headers(headers))
    batch = build_batch([record], base_offset=0, last_offset=0)
    assert to_words(*record_spans(batch, LIMIT), most=100).layout == layout


def test_a_record_with_too_many_fields_is_refused() -> None:
    headers: list[tuple[str, bytes | None]] = [(f"h{number}", b"") for number in range(10)]
    record = Record(0, 5, None, b"v", encode_headers(headers))
    batch = build_batch([record], base_offset=0, last_offset=0)
    payload, spans = record_spans(batch, LIMIT)
    assert len(written(*to_words(payload, spans, most=24))[0]) == 24
    with pytest.raises(TooManyWords):
        to_words(payload, spans, most=23)
