"""How bytes, sizes and times look to people."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.metrics.document import Document, PartitionRow
from moldau.ops.console.formats import (
    SHOWN_BYTES,
    duration_text,
    shown_bytes,
    size_text,
    sparkline,
    time_text,
)
from moldau.ops.console.history import History
from moldau.ops.http.snapshot import Snapshot


@pytest.mark.parametrize(
    ("data", "how", "expected"),
    [
        (None, "auto", ("", "null")),
        (
            b'{"a":[1,{"b":null}]}',
            "auto",
            ('{\n  "a": [\n    1,\n    {\n      "b": null\n    }\n  ]\n}', "json"),
        ),
        (b"7", "auto", ("7", "text")),
        ("Prag\nMoldau ř".encode(), "auto", ("Prag\nMoldau ř", "text")),
        (
            b"\x00\xff",
            "auto",
            ("00000000  00 ff                                            ..", "hex"),
        ),
        (
            b"plain",
            "json",
            ("00000000  70 6c 61 69 6e                                   plain", "hex"),
        ),
        (msgspec.msgpack.encode({"a": 1}), "msgpack", ('{\n  "a": 1\n}', "msgpack")),
    ],
)
def test_bytes_are_shown_in_the_first_format_that_fits(
    data: bytes | None, how: str, expected: tuple[str, str]
) -> None:
    assert shown_bytes(data, how) == expected


@given(st.binary(max_size=200), st.sampled_from(["auto", "text", "json", "msgpack", "hex"]))
def test_any_bytes_can_be_shown(data: bytes, how: str) -> None:
    text, used = shown_bytes(data, how)
    assert used in ("text", "json", "msgpack", "hex")
    assert isinstance(text, str)


def test_what_is_large_is_cut_and_says_so() -> None:
    text, _ = shown_bytes(b"x" * (SHOWN_BYTES + 1))
    assert len(text) < SHOWN_BYTES + 40
    assert text.endswith("16.4 KB in all")


def test_numbers() -> None:
    assert [size_text(n) for n in (0, 999, 1500, 123_456_789)] == [
        "0 B",
        "999 B",
        "1.5 KB",
        "123 MB",
    ]
    assert [duration_text(n) for n in (0.02, 59, 7200, 200_000)] == ["20 ms", "59 s", "2 h", "2 d"]
    assert time_text(0) == "1970-01-01T00:00:00.000Z"
    assert time_text(1 << 62) == str(1 << 62)
    assert sparkline([1.0]) == ""
    assert sparkline([0.0, 1.0], 10, 10) == "0.0,9.0 10.0,1.0"


def test_rates_are_between_points_and_wait_for_every_worker() -> None:
    history = History()

    def snapshot(end: int) -> Snapshot:
        return Snapshot(
            None, [Document(partitions=[PartitionRow("t", 0, 0, end, 0, 0, end, end)])], []
        )

    history.add(0.0, 0.0, snapshot(100))
    history.add(5.0, 5.0, Snapshot(None, [None], []))
    history.add(10.0, 10.0, snapshot(150))
    history.add(15.0, 15.0, snapshot(0))  # deleted and created again
    assert history.record_rates() == [5.0, 0.0]
    assert history.record_rates("t") == [5.0, 0.0]
    assert history.record_rates("other") == []
