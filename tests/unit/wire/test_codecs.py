"""The codecs: what other clients wrote is read, what is written other clients read, and
neither damage nor a decompression bomb does harm."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import cache
from importlib import import_module

import aiokafka.codec
import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.broker.wire.batch import CorruptBatch
from moldau.broker.wire.codecs import (
    CODEC_NAMES,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    CodecError,
    OutputTooLarge,
    UnknownCodec,
    compress,
    decompress,
)
from tests.support.raw import kafka_python

# Not before its package was imported by the module that knows how.
kafka_codec = import_module(kafka_python.DefaultRecordBatch.__module__).codecs

MIB = 1 << 20
COMPRESSING = (GZIP, SNAPPY, LZ4, ZSTD)
# More than one block in every format, partly compressible.
LONG = b"".join(struct.pack(">I", n * 2654435761 % 1000) for n in range(100_000))


def examples(count: int) -> settings:
    """How many to draw; without a deadline for each, which a busy machine would miss."""
    return settings(max_examples=count, deadline=None)


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def zstd_without_size(data: bytes) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


def zstd_with_checksum(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def lz4_frame(**options: bool) -> Callable[[bytes], bytes]:
    def pack(data: bytes) -> bytes:
        packed: bytes = lz4.frame.compress(data, **options)
        return packed

    return pack


# Who writes what, as (codec, compressing function).
WRITERS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip, standard library": (GZIP, gzip.compress),
    "gzip, kafka-python": (GZIP, kafka_codec.gzip_encode),
    "gzip, aiokafka": (GZIP, aiokafka.codec.gzip_encode),
    "snappy, raw": (SNAPPY, raw_snappy),
    "snappy, xerial, aiokafka": (SNAPPY, aiokafka.codec.snappy_encode),
    "lz4, kafka-python": (LZ4, kafka_codec.lz4_encode),
    "lz4, aiokafka": (LZ4, aiokafka.codec.lz4_encode),
    "lz4, no content size": (LZ4, lz4_frame(store_size=False)),
    "lz4, linked blocks": (LZ4, lz4_frame(block_linked=True)),
    "lz4, checksums": (LZ4, lz4_frame(content_checksum=True, block_checksum=True)),
    "zstd, kafka-python": (ZSTD, kafka_codec.zstd_encode),
    "zstd, aiokafka": (ZSTD, aiokafka.codec.zstd_encode),
    "zstd, no content size": (ZSTD, zstd_without_size),
    "zstd, checksum": (ZSTD, zstd_with_checksum),
}

READERS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip, standard library": (GZIP, gzip.decompress),
    "gzip, kafka-python": (GZIP, kafka_codec.gzip_decode),
    "gzip, aiokafka": (GZIP, aiokafka.codec.gzip_decode),
    "snappy, aiokafka": (SNAPPY, aiokafka.codec.snappy_decode),
    "lz4, kafka-python": (LZ4, kafka_codec.lz4_decode),
    "lz4, aiokafka": (LZ4, aiokafka.codec.lz4_decode),
    "zstd, kafka-python": (ZSTD, kafka_codec.zstd_decode),
    "zstd, aiokafka": (ZSTD, aiokafka.codec.zstd_decode),
}

writers = pytest.mark.parametrize(("codec", "pack"), WRITERS.values(), ids=WRITERS)
readers = pytest.mark.parametrize(("codec", "unpack"), READERS.values(), ids=READERS)


@pytest.mark.parametrize("codec", [NONE, *COMPRESSING])
@examples(60)
@given(data=st.binary(max_size=2000), repeat=st.sampled_from((1, 1, 50)))
def test_round_trip(codec: int, data: bytes, repeat: int) -> None:
    data *= repeat
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data


@pytest.mark.parametrize("codec", [NONE, *COMPRESSING])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_takes_any_buffer(codec: int, kind: Callable[[bytes], bytes]) -> None:
    packed = compress(codec, kind(LONG))
    assert type(packed) is bytes
    unpacked = decompress(codec, kind(packed), len(LONG))
    assert type(unpacked) is bytes
    assert unpacked == LONG


@writers
@pytest.mark.parametrize("data", [b"x", LONG], ids=("short", "long"))
def test_reads_what_others_write(codec: int, pack: Callable[[bytes], bytes], data: bytes) -> None:
    assert decompress(codec, pack(data), len(data)) == data


@readers
@pytest.mark.parametrize("data", [b"x", LONG], ids=("short", "long"))
def test_others_read_what_is_written(
    codec: int, unpack: Callable[[bytes], bytes], data: bytes
) -> None:
    assert unpack(compress(codec, data)) == data


def test_lz4_blocks_are_independent() -> None:
    # Kafka's Java reader: "Dependent block stream is unsupported".
    for level in (None, 1, 9, 17):
        flags = compress(LZ4, LONG, level)[4]
        assert flags & 0b0010_0000


def test_snappy_is_in_xerial_framing() -> None:
    packed = compress(SNAPPY, LONG)
    assert packed[:16] == b"\x82SNAPPY\0" + bytes((0, 0, 0, 1, 0, 0, 0, 1))
    (first_block,) = struct.unpack_from(">i", packed, 16)
    block = packed[20 : 20 + first_block]
    assert cramjam.snappy.decompress_raw_len(block) == 32 * 1024


def test_xerial_version_numbers_in_the_wrong_byte_order() -> None:
    packed = bytearray(compress(SNAPPY, LONG))
    packed[8:16] = struct.pack("<ii", 1, 1)
    assert decompress(SNAPPY, packed, len(LONG)) == LONG


@pytest.mark.parametrize(
    ("codec", "low", "high"),
    [(GZIP, 1, 9), (LZ4, 9, 17), (ZSTD, -5, 19)],
    ids=("gzip", "lz4", "zstd"),
)
def test_levels(codec: int, low: int, high: int) -> None:
    quick, small = compress(codec, LONG, low), compress(codec, LONG, high)
    assert len(small) < len(quick)
    assert decompress(codec, quick, len(LONG)) == decompress(codec, small, len(LONG)) == LONG


def test_names() -> None:
    assert [CODEC_NAMES[name] for name in ("none", "gzip", "snappy", "lz4", "zstd")] == [*range(5)]
    assert CODEC_NAMES["uncompressed"] == NONE


@pytest.mark.parametrize("codec", [-1, 5, 6, 7])
def test_unknown_codec(codec: int) -> None:
    with pytest.raises(UnknownCodec):
        compress(codec, b"x")
    with pytest.raises(UnknownCodec):
        decompress(codec, b"x", 10)
    assert issubclass(UnknownCodec, CorruptBatch)


@writers
def test_the_limit_is_exact(codec: int, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(LONG)
    assert decompress(codec, packed, len(LONG)) == LONG
    with pytest.raises(CodecError):
        decompress(codec, packed, len(LONG) - 1)
    with pytest.raises(CodecError):
        decompress(codec, packed, 0)


def test_the_limit_of_what_is_not_compressed() -> None:
    assert decompress(NONE, b"abc", 3) == b"abc"
    with pytest.raises(OutputTooLarge):
        decompress(NONE, b"abc", 2)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_too_large_has_its_own_error(codec: int) -> None:
    with pytest.raises(OutputTooLarge):
        decompress(codec, compress(codec, LONG), 1000)


def bombs() -> dict[str, tuple[int, bytes]]:
    """Small payloads that decompress, or say they do, to half a gigabyte and more."""
    chunk, chunks = bytes(MIB), 512

    gzip_packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    gzip_bomb = b"".join([*(gzip_packer.compress(chunk) for _ in range(chunks))])
    gzip_bomb += gzip_packer.flush()

    def lz4_bomb(size: int) -> bytes:
        packer = lz4.frame.LZ4FrameCompressor(block_linked=False)
        parts = [packer.begin(size), *(packer.compress(chunk) for _ in range(chunks))]
        return b"".join([*parts, packer.flush()])

    def zstd_bomb(size: int) -> bytes:
        packer = zstandard.ZstdCompressor().compressobj(size=size)
        return b"".join([*(packer.compress(chunk) for _ in range(chunks)), packer.flush()])

    block = raw_snappy(chunk)
    xerial = compress(SNAPPY, b"")[:16] + (struct.pack(">i", len(block)) + block) * chunks
    return {
        "gzip": (GZIP, gzip_bomb),
        "lz4": (LZ4, lz4_bomb(0)),
        "lz4 with its size": (LZ4, lz4_bomb(chunks * MIB)),
        "zstd": (ZSTD, zstd_bomb(-1)),
        "zstd with its size": (ZSTD, zstd_bomb(chunks * MIB)),
        # A content size of 2^60 in front of one empty block.
        "zstd that lies": (ZSTD, b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 60) + b"\1\0\0"),
        "snappy that lies": (SNAPPY, b"\xff\xff\xff\xff\x0f" + block[3:]),
        "xerial": (SNAPPY, xerial),
    }


BOMB_SCRIPT = """
import resource, sys
from moldau.broker.wire.codecs import CodecError, decompress

codec, bomb = int(sys.argv[1]), sys.stdin.buffer.read()
decompress(codec, bytes.fromhex(sys.argv[2]), 100)  # whatever the library sets up once
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20),) * 2)
try:
    decompress(codec, bomb, 1 << 20)
except CodecError as error:
    print(type(error).__name__)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="bounds memory as only Linux does")
def test_a_bomb_is_refused_in_bounded_memory() -> None:
    for name, (codec, bomb) in bombs().items():
        outcome = subprocess.run(
            [sys.executable, "-c", BOMB_SCRIPT, str(codec), compress(codec, b"x").hex()],
            input=bomb,
            capture_output=True,
            check=False,
        )
        refusal = b"CodecError\n" if name == "zstd that lies" else b"OutputTooLarge\n"
        assert outcome.stdout == refusal, (name, outcome)


@writers
def test_truncated(codec: int, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(b"truncated, truncated" * 20)
    for end in range(len(packed)):
        if codec == SNAPPY and end == 16:
            continue  # xerial's framing has no end: what is left is a payload of no blocks
        with pytest.raises(CodecError):
            decompress(codec, packed[:end], MIB)


@writers
@pytest.mark.parametrize("more", [b"\0", b"garbage", None], ids=("zero", "garbage", "a frame"))
def test_something_after_the_end(
    codec: int, pack: Callable[[bytes], bytes], more: bytes | None
) -> None:
    packed = pack(b"once" * 100)
    with pytest.raises(CodecError):
        decompress(codec, packed + (packed if more is None else more), MIB)


def test_many_empty_frames_are_not_walked() -> None:
    # Each would cost the library a copy of all that follows.
    for codec in (GZIP, LZ4, ZSTD):
        with pytest.raises(CodecError):
            decompress(codec, compress(codec, b"") * 50_000, MIB)


def test_a_zstd_frame_that_is_shorter_than_it_says() -> None:
    # One segment with its size in one byte, then a last block of no bytes.
    frame = b"\x28\xb5\x2f\xfd\x20%c\1\0\0"
    assert decompress(ZSTD, frame % 0, MIB) == b""
    with pytest.raises(CodecError):
        decompress(ZSTD, frame % 5, MIB)


def test_a_zstd_frame_to_skip_is_not_a_payload() -> None:
    with pytest.raises(CodecError):
        decompress(ZSTD, struct.pack("<II", 0x184D2A50, 4) + b"skip" + compress(ZSTD, b"x"), MIB)


@cache
def packed_once(pack: Callable[[bytes], bytes]) -> bytes:
    return pack(bytes(range(100)) * 5)


@writers
@examples(150)
@given(
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4)
)
def test_damage_is_an_error_or_other_bytes(
    codec: int, pack: Callable[[bytes], bytes], flips: list[tuple[int, int]]
) -> None:
    packed = bytearray(packed_once(pack))
    for at, mask in flips:
        packed[at % len(packed)] ^= mask
    try:
        out = decompress(codec, packed, 4096)
    except CodecError:
        return
    assert len(out) <= 4096


@pytest.mark.parametrize("codec", COMPRESSING)
@examples(300)
@given(data=st.data())
def test_noise_is_an_error_or_some_bytes(codec: int, data: st.DataObject) -> None:
    magic = data.draw(st.sampled_from((b"", compress(codec, b"")[:4], compress(codec, b"")[:8])))
    try:
        out = decompress(codec, magic + data.draw(st.binary(max_size=200)), 4096)
    except CodecError:
        return
    assert len(out) <= 4096
