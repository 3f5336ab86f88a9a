"""Laws of declared messages and their generated codecs, on a message made for the purpose."""

# ruff: noqa: RUF012 (msgspec copies an empty list given as a default)

from __future__ import annotations

import tracemalloc
from typing import Annotated

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.broker.wire.batch import Buffer
from moldau.broker.wire.codegen.compiler import codec
from moldau.broker.wire.primitives import MAX_ELEMENTS, MalformedMessage, uvarint
from moldau.broker.wire.schema import (
    NO_UUID,
    Bool,
    Bytes,
    F,
    Float64,
    Int8,
    Int8Array,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    UInt16,
    Uuid,
    fields_of,
)
from tests.support.raw.wire_messages import INTEGERS
from tests.unit.wire.schema_messages import Inner, Named, decode, encode


class Everything(Message):
    """A field of every type; flexible from version 1 on."""

    flag: Bool = False
    tiny: Int8 = 0
    short: Int16 = 0
    port: UInt16 = 0
    number: Int32 = 0
    long: Int64 = 0
    ratio: Float64 = 0.0
    identity: Uuid = NO_UUID
    text: String = ""
    maybe_text: String | None = None
    blob: Bytes = b""
    maybe_blob: Bytes | None = None
    records: Records | None = None
    types: Int8Array = b""
    numbers: list[Int32] = []
    names: list[String] = []
    flags: list[Bool] = []
    ids: list[Uuid] = []
    maybe_longs: list[Int64] | None = []
    inners: list[Inner] = []
    inner: Inner = msgspec.field(default_factory=Inner)
    gone: Annotated[Int32, F(until=0)] = 5
    maybe_inner: Annotated[Inner | None, F(since=1)] = None
    later_null: Annotated[String | None, F(nullable=2)] = ""
    tagged_text: Annotated[String | None, F(since=1, tag=3)] = None
    tagged_list: Annotated[list[Inner], F(since=1, tag=1)] = []
    tagged_inner: Annotated[Inner | None, F(since=1, tag=200)] = None
    absent_inner: Annotated[Inner, F(since=9)] = msgspec.field(default_factory=Inner)
    # On the wire in version 1, a tag from version 2 on.
    moved: Annotated[Int32, F(since=1, tag=0, tagged_since=2)] = 0


def integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    lowest = -(1 << bits - 1) if signed else 0
    return st.sampled_from((lowest, lowest + (1 << bits) - 1)) | st.integers(
        lowest, lowest + (1 << bits) - 1
    )


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def inners(version: int) -> st.SearchStrategy[Inner]:
    if version == 0:
        return st.builds(Inner, name=TEXT, value=st.just(7), late=st.just(-1))
    return st.builds(Inner, name=TEXT, value=integers(16), late=integers(64))


@st.composite
def everything(draw: st.DrawFn, version: int) -> Everything:
    inner = inners(version)
    message = Everything(
        flag=draw(st.booleans()),
        tiny=draw(integers(8)),
        short=draw(integers(16)),
        port=draw(integers(16, signed=False)),
        number=draw(integers(32)),
        long=draw(integers(64)),
        ratio=draw(st.floats(allow_nan=False)),
        identity=draw(st.binary(min_size=16, max_size=16)),
        text=draw(TEXT),
        maybe_text=draw(st.none() | TEXT),
        blob=draw(st.binary(max_size=300)),
        maybe_blob=draw(st.none() | st.binary(max_size=300)),
        records=draw(st.none() | st.binary(max_size=300)),
        types=draw(st.binary(max_size=600)),
        numbers=draw(st.lists(integers(32), max_size=150)),
        names=draw(st.lists(TEXT, max_size=5)),
        flags=draw(st.lists(st.booleans(), max_size=5)),
        ids=draw(st.lists(st.binary(min_size=16, max_size=16), max_size=3)),
        maybe_longs=draw(st.none() | st.lists(integers(64), max_size=3)),
        inners=draw(st.lists(inner, max_size=4)),
        inner=draw(inner),
    )
    if version == 0:
        message.gone = draw(integers(32))
    if version >= 1:
        message.maybe_inner = draw(st.none() | inner)
        message.tagged_text = draw(st.none() | TEXT)
        message.tagged_list = draw(st.lists(inner, max_size=3))
        message.tagged_inner = draw(st.none() | inner)
        message.moved = draw(integers(32))
    message.later_null = draw(st.none() | TEXT if version >= 2 else TEXT)
    return message


@given(st.data(), st.sampled_from([0, 1, 2]), st.binary(max_size=3), st.binary(max_size=3))
@settings(max_examples=150)
def test_every_type_comes_back(
    data: st.DataObject, version: int, before: bytes, after: bytes
) -> None:
    message = data.draw(everything(version))
    encoded = encode(message, version)
    for frame in (before + encoded + after, bytearray(before + encoded + after)):
        decoded, end = decode(Everything, version, frame, len(before))
        assert decoded == message
        assert end == len(before) + len(encoded)


@given(st.data(), st.sampled_from([0, 1, 2]))
@settings(max_examples=60)
def test_a_message_cut_off_anywhere_is_malformed(data: st.DataObject, version: int) -> None:
    encoded = encode(data.draw(everything(version)), version)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(MalformedMessage):
        decode(Everything, version, encoded[:cut])


@pytest.mark.parametrize("extreme", [0, -1])
def test_extremes_of_integers(extreme: int) -> None:
    for version in (0, 1, 2):
        message = Everything()
        for field in fields_of(Everything):
            if field.kind in INTEGERS and not field.is_array and field.present(version):
                setattr(message, field.name, INTEGERS[field.kind][extreme])
        encoded = encode(message, version)
        assert decode(Everything, version, encoded) == (message, len(encoded))


class Blobs(Message):
    text: String | None = None
    blob: Bytes | None = None
    records: Records | None = None


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16382, 16383, 16384, 32767, 2097151])
@pytest.mark.parametrize("version", [0, 1])
def test_lengths_where_the_encoding_grows(size: int, version: int) -> None:
    text = "x" * min(size, 32767)
    message = Blobs(text, b"y" * size, b"z" * size)
    assert decode(Blobs, version, encode(message, version))[0] == message


class Listed8(Message):
    types: list[Int8] = []


class Packed8(Message):
    types: Int8Array = b""


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("values", [[], [-1], [0, 1, 127, -128], [3] * 500])
def test_an_array_of_int8_is_laid_out_like_bytes(values: list[int], version: int) -> None:
    listed = encode(Listed8(values), version)
    packed = bytes(value & 0xFF for value in values)
    assert encode(Packed8(packed), version) == listed
    assert decode(Packed8, version, listed) == (Packed8(packed), len(listed))


def test_records_of_several_buffers_lie_end_to_end_and_are_not_copied() -> None:
    pieces: list[Buffer] = [bytes(5000), bytearray(b"\1" * 70000), memoryview(bytes(1 << 20))]
    for version in (0, 1):
        parts: list[Buffer] = []
        codec(Blobs, version, version >= 1).encode(Blobs(records=pieces), parts)
        assert [part for part in parts if len(part) >= 5000] == pieces
        assert all(any(part is piece for part in parts) for piece in pieces)
        decoded, _ = decode(Blobs, version, b"".join(parts))
        assert decoded.records == b"".join(pieces)


def test_decoded_records_are_a_view_into_the_frame() -> None:
    for version in (0, 1):
        frame = bytearray(encode(Blobs(records=b"abc"), version))
        decoded, _ = decode(Blobs, version, frame)
        assert isinstance(decoded.records, memoryview)
        assert decoded.records.obj is frame
        decoded.records[0] = ord("x")
        assert b"xbc" in frame


# --- null ---------------------------------------------------------------------------------------


def test_null_where_a_version_does_not_know_null_is_written_as_empty() -> None:
    message = Everything(later_null=None)
    decoded, _ = decode(Everything, 1, encode(message, 1))
    assert decoded.later_null == ""
    decoded, _ = decode(Everything, 2, encode(message, 2))
    assert decoded.later_null is None


class Listed(Message):
    items: list[Named] = []


@pytest.mark.parametrize(
    ("message", "version", "encoded"),
    [
        (Named, 0, "ffff"),  # null where there is none
        (Named, 0, "fffe"),
        (Named, 0, "8000"),
        (Named, 1, "00 00"),
        (Listed, 0, "ffffffff"),
        (Listed, 0, "80000000"),
        (Listed, 1, "00 00"),
        (Blobs, 0, "fffe ffffffff ffffffff"),  # neither a length nor null
        (Blobs, 0, "ffff fffffffe ffffffff"),
        (Named, 0, "0002 ff41"),  # not UTF-8
        (Named, 1, "03 c328 00"),
    ],
)
def test_malformed(message: type[Message], version: int, encoded: str) -> None:
    with pytest.raises(MalformedMessage):
        decode(message, version, bytes.fromhex(encoded))


# --- what a frame may cost ----------------------------------------------------------------------


class Deep(Message):
    outer: list[Listed] = []


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("count", [MAX_ELEMENTS, 1 << 30, (1 << 31) - 1])
def test_a_count_beyond_the_frame_allocates_nothing(version: int, count: int) -> None:
    head = uvarint(count + 1) if version else count.to_bytes(4, "big")
    nested = (b"\2" if version else b"\0\0\0\1") + head
    cases: list[tuple[type[Message], bytes]] = [(Listed, head), (Deep, head), (Deep, nested)]
    for message, frame in cases:
        decoder = codec(message, version, version >= 1).decode
        tracemalloc.start()
        try:
            with pytest.raises(MalformedMessage):
                decoder(frame + bytes(100), 0)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 16 << 10


def test_no_more_elements_than_the_limit_however_they_are_spread() -> None:
    """Two bytes an element: the frame has room for them, memory should not."""
    tiny = b"\x01\x00"
    per_list = 1 << 10
    lists = MAX_ELEMENTS // per_list
    one = uvarint(per_list + 1) + tiny * per_list + b"\0"
    # The lists are elements themselves: one list fewer leaves room for that.
    fitting = uvarint(lists) + one * (lists - 1) + b"\0"
    decoded, end = decode(Deep, 1, fitting)
    assert (len(decoded.outer), end) == (lists - 1, len(fitting))
    with pytest.raises(MalformedMessage, match="elements"):
        decode(Deep, 1, uvarint(lists + 1) + one * lists + b"\0")


# --- declarations -------------------------------------------------------------------------------


def test_declared_fields() -> None:
    fields = {field.name: field for field in fields_of(Everything)}
    assert [field.name for field in fields_of(Inner)] == ["name", "value", "late"]
    assert fields["gone"].present(0)
    assert not fields["gone"].present(1)
    assert fields["moved"].present(1)
    assert not fields["moved"].tagged(1)
    assert fields["moved"].tagged(2)
    assert not fields["later_null"].nullable(1)
    assert fields["later_null"].nullable(2)
    assert fields["maybe_longs"].is_array
    assert fields["maybe_longs"].optional
    assert fields["inner"].struct is Inner
    assert fields["records"].kind == "records"


def test_defaults_are_not_shared_between_decoded_messages() -> None:
    first, _ = decode(Everything, 0, encode(Everything(), 0))
    second, _ = decode(Everything, 0, encode(Everything(), 0))
    assert first.tagged_list == second.tagged_list == []
    assert first.tagged_list is not second.tagged_list
    assert first.absent_inner == second.absent_inner == Inner()
    assert first.absent_inner is not second.absent_inner


def test_a_codec_is_compiled_once() -> None:
    assert codec(Inner, 1, True) is codec(Inner, 1, True)
    assert codec(Inner, 1, True) is not codec(Inner, 0, False)
