"""Records and batches of them for tests of the wire: drawn at random, or always the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from moldau.broker.wire.batch import CODEC_MASK, Buffer
from moldau.broker.wire.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from moldau.broker.wire.records import (
    Record,
    build_batch,
    checked_header,
    encode_headers,
    keyless_records,
    payload_of,
    with_codec,
)

CODECS = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
LIMIT = 1 << 24
NOW = 1_700_000_000_000
every_codec = pytest.mark.parametrize("codec", CODECS)

nullable_bytes = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=70)
header_lists = st.lists(st.tuples(st.text(max_size=10), nullable_bytes), max_size=3)
sane_times = st.integers(NOW, NOW + 100_000)


def examples(count: int) -> settings:
    """How many to draw; without a deadline for each, which a busy machine would miss."""
    return settings(max_examples=count, deadline=None)


@st.composite
def record_lists(
    draw: st.DrawFn,
    *,
    min_size: int = 1,
    dense: bool = False,
    times: st.SearchStrategy[int] = sane_times,
) -> list[Record]:
    """Records with increasing offsets from some base on, with gaps unless `dense`."""
    records = []
    offset = draw(st.sampled_from((0, 0, 7, 1 << 40)))
    for _ in range(draw(st.integers(min_size, 8))):
        offset += 0 if dense else draw(st.sampled_from((0, 0, 1, 63, 70, 9000)))
        records.append(
            Record(
                offset,
                draw(times),
                draw(nullable_bytes),
                draw(nullable_bytes),
                encode_headers(draw(header_lists)),
            )
        )
        offset += 1
    return records


def batch_of(records: list[Record], **options: Any) -> bytearray:
    options.setdefault("base_offset", records[0].offset)
    options.setdefault("last_offset", records[-1].offset)
    return build_batch(records, **options)


def some_records(count: int = 5) -> list[Record]:
    headers = encode_headers([("trace", b"\0\1"), ("none", None)])
    return [
        Record(100 + n, NOW + n % 3, b"key %d" % n, None if n == 2 else b"value " * 20, headers)
        for n in range(count)
    ]


def recompress(batch: Buffer, codec: int, level: int | None, limit: int) -> Buffer:
    """The same batch with another codec, as a topic's `compression.type` has it made."""
    header = checked_header(batch)
    if header.record_count == 0 or header.attributes & CODEC_MASK == codec:
        return batch
    return with_codec(header, payload_of(batch, header, limit), codec, level)


def keyless_of(batch: Buffer, limit: int = LIMIT) -> list[int]:
    header = checked_header(batch)
    return keyless_records(header, payload_of(batch, header, limit), 1 << 31)
