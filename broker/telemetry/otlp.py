"""The numbers in an OTLP MetricsData message: the few protobuf messages of it that clients use.

    MetricsData     resource_metrics 1
    ResourceMetrics resource 1, scope_metrics 2
    Resource        attributes 1
    ScopeMetrics    metrics 2
    Metric          name 1, gauge 5, sum 7
    Gauge           data_points 1
    Sum             data_points 1, aggregation_temporality 2, is_monotonic 3
    NumberDataPoint as_double 4, as_int 6, attributes 7, flags 8
    KeyValue        key 1, value 2
    AnyValue        string_value 1, bool_value 2, int_value 3, double_value 4

Everything else, histograms among it, is skipped. The bytes were written by strangers: the outcome
is numbers or `MalformedMetrics`, every length is checked before it is used, nothing recurses, and
reading ends after `MAX_POINTS`. As in every reader of protobuf, a known field with another wire
type than its own is an unknown field, and the last of several counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

MAX_POINTS = 2048  # of one message; the rest is not read

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_DOUBLE = struct.Struct("<d")
_INT64 = struct.Struct("<q")
_MAX_TAG = (1 << 32) - 1
_DELTA = 1  # AggregationTemporality
_NO_RECORDED_VALUE = 1  # a flag of a point

Attributes = tuple[tuple[str, str], ...]
# Field number, wire type; and the value: a number, or where the bytes begin and end.
Field = tuple[int, int, int, int]


class MalformedMetrics(ValueError):
    """These bytes are no MetricsData message."""


class Point(msgspec.Struct, frozen=True, gc=False):
    name: str
    attributes: Attributes
    value: float
    is_counter: bool  # it only grows
    is_delta: bool  # what has come in addition since the last push


class Metrics(msgspec.Struct, frozen=True):
    resource: dict[str, str]
    points: list[Point]


def read_metrics(data: bytes) -> Metrics:
    """Raises MalformedMetrics."""
    resource: dict[str, str] = {}
    points: list[Point] = []
    try:
        for number, kind, start, end in _fields(data, 0, len(data)):
            if number == 1 and kind == _LENGTH:
                _read_resource_metrics(data, start, end, resource, points)
    except _Enough:
        pass
    except UnicodeDecodeError as fault:
        raise MalformedMetrics(f"a name or value is no UTF-8: {fault}") from None
    return Metrics(resource, points)


class _Enough(Exception):
    pass


def _read_resource_metrics(
    data: bytes, at: int, end: int, resource: dict[str, str], points: list[Point]
) -> None:
    for number, kind, start, stop in _fields(data, at, end):
        if kind != _LENGTH:
            continue
        if number == 1:
            for inner, inner_kind, first, last in _fields(data, start, stop):
                if inner == 1 and inner_kind == _LENGTH:
                    resource.update(_attribute(data, first, last))
        elif number == 2:
            for inner, inner_kind, first, last in _fields(data, start, stop):
                if inner == 2 and inner_kind == _LENGTH:
                    _read_metric(data, first, last, points)


def _read_metric(data: bytes, at: int, end: int, points: list[Point]) -> None:
    name = ""
    number_of = 0
    found: list[tuple[int, int]] = []  # the messages with its points
    for number, kind, start, stop in _fields(data, at, end):
        if kind != _LENGTH:
            continue
        if number == 1:
            name = data[start:stop].decode()
        elif number in (5, 7, 9, 10, 11):
            if number != number_of:  # one of them only: the last one counts
                number_of, found = number, []
            found.append((start, stop))
    if number_of not in (5, 7):
        return
    temporality, is_monotonic = 0, False
    spans: list[tuple[int, int]] = []
    for start, stop in found:
        for number, kind, first, last in _fields(data, start, stop):
            if number == 1 and kind == _LENGTH:
                spans.append((first, last))
            elif number == 2 and kind == _VARINT:
                temporality = first
            elif number == 3 and kind == _VARINT:
                is_monotonic = first != 0
    is_sum = number_of == 7
    for first, last in spans:
        value, attributes = _read_point(data, first, last)
        if value is not None:
            is_counter, is_delta = is_sum and is_monotonic, is_sum and temporality == _DELTA
            points.append(Point(name, attributes, value, is_counter, is_delta))
        if len(points) >= MAX_POINTS:
            raise _Enough


def _read_point(data: bytes, at: int, end: int) -> tuple[float | None, Attributes]:
    value: float | None = None
    attributes: dict[str, str] = {}
    flags = 0
    for number, kind, start, stop in _fields(data, at, end):
        if number == 4 and kind == _FIXED64:
            (value,) = _DOUBLE.unpack_from(data, start)
        elif number == 6 and kind == _FIXED64:
            value = float(_INT64.unpack_from(data, start)[0])
        elif number == 7 and kind == _LENGTH:
            attributes.update(_attribute(data, start, stop))
        elif number == 8 and kind == _VARINT:
            flags = start
    if flags & _NO_RECORDED_VALUE:
        value = None
    return value, tuple(sorted(attributes.items()))


def _attribute(data: bytes, at: int, end: int) -> dict[str, str]:
    """Empty when its value is none that can be shown."""
    key, value = "", None
    for number, kind, start, stop in _fields(data, at, end):
        if kind != _LENGTH:
            continue
        if number == 1:
            key = data[start:stop].decode()
        elif number == 2:
            found, seen = _any_value(data, start, stop)
            value = found if seen else value
    return {} if value is None else {key: value}


def _any_value(data: bytes, at: int, end: int) -> tuple[str | None, bool]:
    """The text of the value, and whether there is one at all."""
    value: str | None = None
    seen = False
    for number, kind, start, stop in _fields(data, at, end):
        if number == 1 and kind == _LENGTH:
            value, seen = data[start:stop].decode(), True
        elif number == 2 and kind == _VARINT:
            value, seen = "true" if start else "false", True
        elif number == 3 and kind == _VARINT:
            value, seen = str(start - (1 << 64) if start >> 63 else start), True
        elif number == 4 and kind == _FIXED64:
            value, seen = repr(_DOUBLE.unpack_from(data, start)[0]), True
        elif number in (5, 6, 7) and kind == _LENGTH:
            value, seen = None, True  # a list, a map, bytes
    return value, seen


def _fields(data: bytes, at: int, end: int) -> Iterator[Field]:
    """The fields of the message from `at` to `end`."""
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = _varint(data, at - 1, end)
            if tag > _MAX_TAG:
                raise MalformedMetrics(f"field {tag >> 3}")
        number, kind = tag >> 3, tag & 7
        if not number:
            raise MalformedMetrics("a field without a number")
        if kind == _LENGTH:
            size, at = _varint(data, at, end)
            start, at = at, at + size
            if at > end:
                raise MalformedMetrics(f"field {number} of {size} bytes overruns its message")
            yield number, kind, start, at
        elif kind == _VARINT:
            value, at = _varint(data, at, end)
            yield number, kind, value, 0
        elif kind in (_FIXED64, _FIXED32):
            start, at = at, at + (8 if kind == _FIXED64 else 4)
            if at > end:
                raise MalformedMetrics(f"field {number} overruns its message")
            yield number, kind, start, at
        else:
            raise MalformedMetrics(f"field {number} has wire type {kind}")


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift == 70:
            raise MalformedMetrics("a number of more than ten bytes")
    raise MalformedMetrics("a number overruns its message")
