"""The filter of records: a little language, and no script."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.wire.records import Record, encode_headers
from moldau.ops.console.filters import InvalidFilter, parse

ORDER = {
    "user": {"id": 7, "name": "Ann Smith"},
    "total": 99.5,
    "tags": ["new"],
    "paid": True,
    "x": None,
}
RECORD = Record(
    42,
    1000,
    b"alice",
    json.dumps(ORDER).encode(),
    encode_headers([("source", b"web"), ("n", None)]),
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "alice",
        "Ann Smith",
        "key = alice",
        "value.user.id = 7",
        "value.user.id=7",
        'value.user.name = "Ann Smith"',
        "value.total > 99 and value.total <= 99.5",
        "value.tags contains new",
        "value.tags.0 = new",
        "value.user.name contains Smith",
        "value.paid = true",
        "value.x = null",
        "value.missing != 1",
        "header.source = web",
        "header.other != web",
        "offset >= 42",
    ],
)
def test_what_passes(text: str) -> None:
    assert parse(text)(RECORD)


@pytest.mark.parametrize(
    "text",
    [
        "bob",
        "key = bob",
        "key != alice",
        "value.user.id = 8",
        "value.user.id = seven",
        "value.missing = 1",
        "value.user.id.deeper = 7",
        "value.tags contains old",
        "header.source = shell",
        "value.total > 99 and value.paid = false",
        "offset < 42",
        "nonsense = 1",
    ],
)
def test_what_does_not(text: str) -> None:
    assert not parse(text)(RECORD)


@pytest.mark.parametrize(
    "text", ["key =", "= 1", "key = a b", "a = 1 and", "key = alice and b", "x" * 501]
)
def test_what_is_wrong_is_said(text: str) -> None:
    with pytest.raises(InvalidFilter):
        parse(text)


@given(st.text(max_size=60), st.binary(max_size=60))
def test_any_text_and_any_bytes_give_an_answer(text: str, value: bytes) -> None:
    try:
        wanted = parse(text)
    except InvalidFilter:
        return
    assert wanted(Record(0, 0, None, value)) in (True, False)
