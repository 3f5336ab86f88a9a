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
reading ends after `MAX_POINTS` or `MAX_FIELDS`. It takes about 0.1 ms per kilobyte, so it is done
in steps, between which others have their turn. As in every reader of protobuf, a known field with
another wire type than its own is an unknown field, and the last of several counts.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator

import msgspec

MAX_POINTS = 512  # of one message; the rest is not read
MAX_FIELDS = 24_000  # likewise; a metric with one point has fifteen to thirty
_POINTS_OF_A_STEP = 32

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_DOUBLE = struct.Struct("<d")
_INT64 = struct.Struct("<q")
_MAX_TAG = (1 << 32) - 1
_DELTA = 1  # values of AggregationTemporality
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
    is_counter: bool  # a monotonic sum
    is_delta: bool  # the increase since the last push


class Metrics(msgspec.Struct, frozen=True):
    resource: dict[str, str]
    points: list[Point]


Steps = Generator[None, None, None]


def read_steps(data: bytes) -> Generator[None, None, Metrics]:
    """Read a message in steps. Yields often and returns the metrics. Raises MalformedMetrics."""
    found = Metrics({}, [])
    try:
        yield from _Reader(data, found).read()
    except _Enough:
        pass
    except UnicodeDecodeError as fault:
        raise MalformedMetrics(f"a name or value is no UTF-8: {fault}") from None
    return found


class _Enough(Exception):
    pass


class _Reader:
    def __init__(self, data: bytes, found: Metrics) -> None:
        self._data = data
        self._resource, self._points = found.resource, found.points
        self._left = MAX_FIELDS

    def read(self) -> Steps:
        for number, kind, start, end in self._fields(0, len(self._data)):
            if number == 1 and kind == _LENGTH:
                yield from self._resource_metrics(start, end)

    def _resource_metrics(self, at: int, end: int) -> Steps:
        for number, kind, start, stop in self._fields(at, end):
            if kind != _LENGTH:
                continue
            if number == 1:
                for inner, inner_kind, first, last in self._fields(start, stop):
                    if inner == 1 and inner_kind == _LENGTH:
                        self._resource.update(self._attribute(first, last))
            elif number == 2:
                for inner, inner_kind, first, last in self._fields(start, stop):
                    if inner == 2 and inner_kind == _LENGTH:
                        yield from self._metric(first, last)

    def _metric(self, at: int, end: int) -> Steps:
        name = ""
        number_of = 0
        found: list[tuple[int, int]] = []  # the messages with its points
        for number, kind, start, stop in self._fields(at, end):
            if kind != _LENGTH:
                continue
            if number == 1:
                name = self._text(start, stop)
            elif number in (5, 7, 9, 10, 11):
                if number != number_of:  # one of them only: the last one counts
                    number_of, found = number, []
                found.append((start, stop))
        yield
        if number_of not in (5, 7):
            return
        temporality, is_monotonic = 0, False
        spans: list[tuple[int, int]] = []
        for start, stop in found:
            for number, kind, first, last in self._fields(start, stop):
                if number == 1 and kind == _LENGTH:
                    spans.append((first, last))
                elif number == 2 and kind == _VARINT:
                    temporality = first
                elif number == 3 and kind == _VARINT:
                    is_monotonic = first != 0
        is_sum = number_of == 7
        is_counter, is_delta = is_sum and is_monotonic, is_sum and temporality == _DELTA
        points = self._points
        for first, last in spans:
            value, attributes = self._point(first, last)
            if value is not None:
                points.append(Point(name, attributes, value, is_counter, is_delta))
            if len(points) >= MAX_POINTS:
                raise _Enough
            if len(points) % _POINTS_OF_A_STEP == 0:
                yield

    def _point(self, at: int, end: int) -> tuple[float | None, Attributes]:
        data = self._data
        value: float | None = None
        attributes: dict[str, str] = {}
        flags = 0
        for number, kind, start, stop in self._fields(at, end):
            if number == 4 and kind == _FIXED64:
                (value,) = _DOUBLE.unpack_from(data, start)
            elif number == 6 and kind == _FIXED64:
                value = float(_INT64.unpack_from(data, start)[0])
            elif number == 7 and kind == _LENGTH:
                attributes.update(self._attribute(start, stop))
            elif number == 8 and kind == _VARINT:
                flags = start
        if flags & _NO_RECORDED_VALUE:
            value = None
        return value, tuple(sorted(attributes.items()))

    def _attribute(self, at: int, end: int) -> dict[str, str]:
        """Return an attribute, or an empty one if its value cannot be shown."""
        key, value = "", None
        for number, kind, start, stop in self._fields(at, end):
            if kind != _LENGTH:
                continue
            if number == 1:
                key = self._text(start, stop)
            elif number == 2:
                found, is_set = self._any_value(start, stop)
                value = found if is_set else value
        return {} if value is None else {key: value}

    def _any_value(self, at: int, end: int) -> tuple[str | None, bool]:
        """Return the text of a value, and whether there is one at all."""
        value: str | None = None
        is_set = False
        for number, kind, start, stop in self._fields(at, end):
            if number == 1 and kind == _LENGTH:
                value, is_set = self._text(start, stop), True
            elif number == 2 and kind == _VARINT:
                value, is_set = "true" if start else "false", True
            elif number == 3 and kind == _VARINT:
                value, is_set = str(start - (1 << 64) if start >> 63 else start), True
            elif number == 4 and kind == _FIXED64:
                value, is_set = repr(_DOUBLE.unpack_from(self._data, start)[0]), True
            elif number in (5, 6, 7) and kind == _LENGTH:
                value, is_set = None, True  # a list, a map, bytes
        return value, is_set

    def _text(self, start: int, stop: int) -> str:
        return self._data[start:stop].decode()

    def _fields(self, at: int, end: int) -> Iterator[Field]:
        """Yield the fields of the message from `at` to `end`."""
        data = self._data
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise _Enough
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
