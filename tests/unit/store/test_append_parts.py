"""Which files the append-only file consists of."""

from __future__ import annotations

import pytest

from moldau.broker.store.append_parts import Part, parts_text, read_parts


def test_the_parts_that_are_loaded() -> None:
    text = (
        "file appendonly.aof.1.base.rdb seq 1 type h\n"
        "file appendonly.aof.2.base.rdb seq 2 type b\n"
        "file appendonly.aof.2.incr.aof seq 2 type i\n"
        "file appendonly.aof.3.incr.aof seq 3 type i startoffset 7\n"
    )
    parts = read_parts(text)
    assert parts == [
        Part("appendonly.aof.2.base.rdb", 2, "b"),
        Part("appendonly.aof.2.incr.aof", 2, "i"),
        Part("appendonly.aof.3.incr.aof", 3, "i"),
    ]
    assert read_parts(parts_text(parts)) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "file appendonly.aof.1.base.rdb seq 1 type b\n",
        "file ../outside.aof seq 1 type i\n",
        "something else\n",
    ],
)
def test_what_is_no_list_of_parts(text: str) -> None:
    with pytest.raises(ValueError, match="append-only"):
        read_parts(text)
