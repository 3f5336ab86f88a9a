"""Our reader of OTLP reads what opentelemetry's own classes write, and survives everything else."""

from __future__ import annotations

import contextlib
import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from moldau.broker.telemetry.otlp import (
    MAX_FIELDS,
    MAX_POINTS,
    MalformedMetrics,
    Metrics,
    Point,
    read_steps,
)

DELTA, CUMULATIVE = 1, 2


def read_metrics(data: bytes) -> Metrics:
    steps = read_steps(data)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Metrics = end.value
            return found


def attribute(target: Any, key: str, value: object) -> None:
    pair = target.add(key=key)
    match value:
        case bool():
            pair.value.bool_value = value
        case int():
            pair.value.int_value = value
        case float():
            pair.value.double_value = value
        case bytes():
            pair.value.bytes_value = value
        case list():
            pair.value.array_value.values.add(string_value="x")
        case _:
            pair.value.string_value = str(value)


def text_of(value: object) -> str | None:
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value)
        case bytes() | list():
            return None  # not shown
        case _:
            return str(value)


WORDS = st.text(max_size=12)
VALUES: st.SearchStrategy[object] = (
    WORDS
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=5)
    | st.just([])
)
ATTRIBUTES = st.dictionaries(WORDS, VALUES, max_size=4)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False)
POINTS = st.lists(st.tuples(NUMBERS, ATTRIBUTES, st.booleans()), max_size=4)
METRICS = st.lists(
    st.tuples(
        WORDS,
        st.sampled_from(("gauge", "sum", "histogram", "summary")),
        st.sampled_from((0, DELTA, CUMULATIVE)),
        st.booleans(),
        POINTS,
    ),
    max_size=5,
)


def message(resource: dict[str, object], metrics: list[Any]) -> tuple[bytes, list[Point]]:
    """The message, and the numbers in it."""
    data = MetricsData()
    of_resource = data.resource_metrics.add(schema_url="u")
    for key, value in resource.items():
        attribute(of_resource.resource.attributes, key, value)
    scope = of_resource.scope_metrics.add()
    scope.scope.name = "org.apache.kafka"
    expected = []
    for name, kind, temporality, is_monotonic, points in metrics:
        metric = scope.metrics.add(name=name, description="d", unit="ms")
        into = getattr(metric, kind)
        into.SetInParent()
        is_sum = kind == "sum"
        if is_sum:
            into.aggregation_temporality, into.is_monotonic = temporality, is_monotonic
        for number, attributes, is_missing in points:
            point = into.data_points.add(time_unix_nano=5)
            for key, value in attributes.items():
                attribute(point.attributes, key, value)
            if kind not in ("gauge", "sum"):
                continue
            if isinstance(number, int):
                point.as_int = number
            else:
                point.as_double = number
            point.flags = int(is_missing)
            shown = {key: text_of(value) for key, value in attributes.items()}
            kept = tuple(sorted((key, text) for key, text in shown.items() if text is not None))
            if not is_missing:
                is_counter, is_delta = is_sum and is_monotonic, is_sum and temporality == DELTA
                expected.append(Point(name, kept, float(number), is_counter, is_delta))
    return data.SerializeToString(), expected


@settings(max_examples=200, deadline=None)
@given(resource=ATTRIBUTES, metrics=METRICS)
def test_what_others_write_is_read(resource: dict[str, object], metrics: list[Any]) -> None:
    data, expected = message(resource, metrics)
    found = read_metrics(data)
    assert found.points == expected
    shown = {key: text_of(value) for key, value in resource.items()}
    assert found.resource == {key: text for key, text in shown.items() if text is not None}


EXAMPLE, _ = message(
    {"group_id": "g"},
    [
        ("org.apache.kafka.a", "sum", CUMULATIVE, True, [(5, {"node_id": "1"}, False)]),
        ("org.apache.kafka.b", "gauge", 0, False, [(1.5, {}, False), (2.5, {"x": 3}, False)]),
        ("org.apache.kafka.c", "histogram", 0, False, [(0, {}, False)]),
    ],
)


@settings(max_examples=500, deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_metrics_or_malformed(data: bytes) -> None:
    with contextlib.suppress(MalformedMetrics):
        read_metrics(data)


@settings(max_examples=500, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_damaged_message_is_read_as_others_read_it_or_malformed(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(EXAMPLE)
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    damaged = bytes(data[: rng.randint(0, len(data))] if rng.random() < 0.5 else data)
    try:
        found = read_metrics(damaged)
    except MalformedMetrics:
        return
    theirs = MetricsData()
    try:
        theirs.ParseFromString(damaged)
    except Exception:
        return  # what we skip they check
    names = [
        metric.name
        for resource in theirs.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.WhichOneof("data") in ("gauge", "sum")
        for point in getattr(metric, metric.WhichOneof("data")).data_points
        if point.WhichOneof("value") and not point.flags & 1
    ]
    assert [point.name for point in found.points] == names


@pytest.mark.parametrize("cut", range(1, len(EXAMPLE)))
def test_a_message_that_ends_early_is_malformed(cut: int) -> None:
    """Its one field of the outermost message has a length: any cut is noticed."""
    with pytest.raises(MalformedMetrics):
        read_metrics(EXAMPLE[:cut])


@pytest.mark.parametrize(
    "data",
    [
        b"\x00",  # field 0
        b"\x0b",  # a group
        b"\x0f",  # no such wire type
        b"\x08" + b"\xff" * 10,  # a number of more than ten bytes
        b"\x0a\xff\xff\xff\xff\x0f",  # 4 GB of a few bytes
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00",  # field 2 ** 61
        b"\x0d\x00",  # half of a fixed32
    ],
)
def test_what_cannot_be_protobuf_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMetrics):
        read_metrics(data)


def test_names_that_are_no_text_are_malformed() -> None:
    data = MetricsData()
    data.resource_metrics.add().scope_metrics.add().metrics.add(name="abc").gauge.data_points.add(
        as_int=1
    )
    with pytest.raises(MalformedMetrics, match="UTF-8"):
        read_metrics(data.SerializeToString().replace(b"abc", b"\xff\xfe\xfd"))


def test_reading_ends_after_enough_points() -> None:
    data = MetricsData()
    gauge = data.resource_metrics.add().scope_metrics.add().metrics.add(name="n").gauge
    for number in range(MAX_POINTS + 100):
        gauge.data_points.add(as_int=number)
    assert len(read_metrics(data.SerializeToString()).points) == MAX_POINTS


def test_reading_ends_after_enough_fields() -> None:
    """Whatever they are: none of these is a number."""
    junk = b"\x7a\0" * (2 * MAX_FIELDS)  # field 15, empty
    data = MetricsData()
    data.resource_metrics.add().scope_metrics.add().metrics.add(name="n").gauge.data_points.add(
        as_int=1
    )
    assert len(read_metrics(data.SerializeToString() + junk).points) == 1
    assert read_metrics(junk + data.SerializeToString()).points == []


def test_a_value_that_is_not_a_number_is_passed_on() -> None:
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add(name="n")
    metric.gauge.data_points.add(as_double=struct.unpack("<d", b"\x00" * 6 + b"\xf8\x7f")[0])
    (point,) = read_metrics(data.SerializeToString()).points
    assert point.value != point.value
