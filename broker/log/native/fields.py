"""Records as the fields of a stream entry, and the reverse. Pure.

    key, value           absent when null, empty when empty
    timestamp            decimal milliseconds
    header.<name>        one per header, in order; `null-header.<name>` for one without a value

An entry with other fields was written by a Redis application: its value is a JSON object of all its
fields, or the one field that the topic names (`moldau.native.value`).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from moldau.broker.wire.records import (
    NO_HEADERS,
    Record,
    Span,
    decode_headers,
    encode_headers,
    record_at,
)

KEY, VALUE, TIMESTAMP = b"key", b"value", b"timestamp"
HEADER, NULL_HEADER = b"header.", b"null-header."

_encode_json = msgspec.json.Encoder().encode


class Content(NamedTuple):
    timestamp: int | None  # None: the entry's own time
    key: bytes | None
    value: bytes | None
    headers: bytes


class TooManyWords(ValueError):
    """A record has more fields than an entry can be written with."""


class Words(NamedTuple):
    """Records as the store's function takes them; see WRITERS in native_library.lua."""

    layout: bytes
    words: list[bytes | int]


def to_words(payload: bytes, spans: Sequence[Span], most: int) -> Words:
    """Words without field names where all records have the usual fields; at most so many each."""
    keyed = spans[0][3] >= 0
    words: list[bytes | int] = []
    when, written = None, b""
    for _, timestamp, key_at, key_end, value_at, value_end, headers_at, end in spans:
        if value_end < 0 or (key_end >= 0) is not keyed or end - headers_at != 1:
            return _any_words(payload, spans, most)
        if timestamp != when:
            when, written = timestamp, b"%d" % timestamp
        if keyed:
            words += (payload[key_at:key_end], payload[value_at:value_end], written)
        else:
            words += (payload[value_at:value_end], written)
    return Words(b"kvt" if keyed else b"vt", words)


def _any_words(payload: bytes, spans: Sequence[Span], most: int) -> Words:
    words: list[bytes | int] = []
    for span in spans:
        fields = to_fields(record_at(payload, span))
        if len(fields) > most:
            raise TooManyWords(f"{len(fields)} words, at most {most}")
        words.append(len(fields))
        words += fields
    return Words(b"any", words)


def to_fields(record: Record) -> list[bytes]:
    """Names and values, one after the other."""
    fields: list[bytes] = []
    if record.key is not None:
        fields += (KEY, record.key)
    if record.value is not None:
        fields += (VALUE, record.value)
    fields += (TIMESTAMP, b"%d" % record.timestamp)
    if record.headers != NO_HEADERS:
        for name, value in decode_headers(record.headers):
            if value is None:
                fields += (NULL_HEADER + name.encode(), b"")
            else:
                fields += (HEADER + name.encode(), value)
    return fields


def from_fields(fields: Sequence[bytes], value_field: bytes | None = None) -> Content:
    key = value = None
    timestamp: int | None = None
    headers: list[tuple[str, bytes | None]] = []
    chosen = None
    foreign = False
    names = iter(fields)
    for name, content in zip(names, names, strict=True):
        if name == value_field:
            chosen = content
        if name == VALUE:
            value = content
        elif name == KEY:
            key = content
        elif name == TIMESTAMP:
            timestamp = milliseconds(content)
            foreign = foreign or timestamp is None
        elif name.startswith(HEADER):
            headers.append((name[len(HEADER) :].decode("utf-8", "replace"), content))
        elif name.startswith(NULL_HEADER):
            headers.append((name[len(NULL_HEADER) :].decode("utf-8", "replace"), None))
        else:
            foreign = True
    packed = encode_headers(headers) if headers else NO_HEADERS
    if value_field is not None:
        return Content(timestamp, key, chosen, packed)
    if foreign:
        return Content(timestamp, None, as_json(fields), NO_HEADERS)
    return Content(timestamp, key, value, packed)


def milliseconds(content: bytes) -> int | None:
    """A Redis application's `timestamp` may be anything."""
    if content.isdigit() and len(content) < 19:
        return int(content)
    return -1 if content == b"-1" else None


def as_json(fields: Sequence[bytes]) -> bytes:
    """`{"name": "value"}`; bytes that are no text as `{"base64": "..."}`, repeats as a list."""
    out: dict[str, object] = {}
    names = iter(fields)
    for raw, content in zip(names, names, strict=True):
        name, value = _name(raw), _text(content)
        if name not in out:
            out[name] = value
            continue
        before = out[name]
        if isinstance(before, list):
            before.append(value)
        else:
            out[name] = [before, value]
    return _encode_json(out)


def _text(content: bytes) -> str | dict[str, str]:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _name(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(raw).decode()
