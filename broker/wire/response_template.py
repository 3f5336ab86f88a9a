"""A response that is the same every time but for its correlation id and a run of int64 fields.

Encoding an answer like Produce's anew for every request costs more than appending the batch; most
of its bytes never change. A template is made from a message encoded the ordinary way, so that the
layout is declared in one place only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from broker.wire.apis import Api
from broker.wire.frame import response_frame
from broker.wire.schema import Message

# Values to find the run by: no real field holds them.
MARKS = (0x5A17B0C3_11223344, 0x5A17B0C3_22334455, 0x5A17B0C3_33445566)


class Template:
    """`fill(correlation id, values...)` gives the whole frame as bytes."""

    __slots__ = ("_after", "_before", "_pack", "_size")

    def __init__(self, api: Api, version: int, marked: Message, fields: int) -> None:
        """`marked` carries the first `fields` of MARKS, in order, side by side on the wire."""
        whole = b"".join(response_frame(api, version, 0, marked))
        run = struct.pack(f">{fields}q", *MARKS[:fields])
        at = whole.index(run)
        self._size = len(whole) - 4
        self._before = whole[8:at]
        self._after = whole[at + len(run) :]
        layout = f">ii{len(self._before)}s{fields}q{len(self._after)}s"
        self._pack: Callable[..., bytes] = struct.Struct(layout).pack

    def fill(self, correlation_id: int, *values: Any) -> bytes:
        return self._pack(self._size, correlation_id, self._before, *values, self._after)
