"""The five compression codecs of a record batch: bytes in, bytes out.

They are used where records themselves are looked at: compaction, recompression, look-up by
timestamp, compacted topics. Ordinary produce and fetch pass compressed bytes on untouched.

The input was written by strangers, so decompressing is bounded: `limit` is the maximum size of the
output, and nothing much larger is allocated on the way, whatever a header declares. Large payloads
are decompressed in pieces, until `limit` is exceeded. A zstd frame, whose blocks declare how much
they can hold, is decompressed into a buffer of that size or of `limit`. A payload is exactly one
frame, as every client writes it; a frame that ends early or is followed by something else is
corrupt.

The output is the dialect that all clients read:

    gzip     one member
    snappy   blocks of 32 KiB in xerial's framing, as Java writes them (raw is read too)
    lz4      the frame format with independent blocks: Java refuses linked ones
    zstd     one frame that declares its content size
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO

import cramjam
import lz4.frame
import zstandard

from moldau.broker.wire.batch import Buffer, CorruptBatch

NONE = 0
GZIP = 1
SNAPPY = 2
LZ4 = 3
ZSTD = 4

# The names of the topic configuration `compression.type`, plus the producers' word for no codec.
CODEC_NAMES = {
    "none": NONE,
    "uncompressed": NONE,
    "gzip": GZIP,
    "snappy": SNAPPY,
    "lz4": LZ4,
    "zstd": ZSTD,
}

_PIECE = 1 << 20  # decompressed at once; nearly every batch is smaller
_INPUT = 64 * 1024
_WRONG_END = "{} payload does not end where the batch does"

_GZIP_FORMAT = 16 + zlib.MAX_WBITS
# A byte of a deflate stream yields at most 1032 bytes, and three bytes of a snappy block at most
# 64.
_GZIP_MAX_RATIO = 1032
_SNAPPY_MAX_RATIO = 22

# Marker, version 1, compatible with version 1. Readers only check the marker: some producers write
# the two numbers in the wrong byte order.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">I")

# A byte of an LZ4 sequence yields at most 255 bytes.
_LZ4_MAX_RATIO = 255
# Kafka's default of `compression.lz4.level`, which stands for the fast compressor. Any other level
# is one of the high compressor, whose levels end at 12 although Kafka allows 17.
_KAFKA_DEFAULT_LZ4_LEVEL = 9
_LZ4_FAST = 0
_LZ4_HIGHEST = 12

_ZSTD_DEFAULT_LEVEL = 3
_ZSTD_MAX_BLOCK = 128 * 1024
_ZSTD_MAX_WINDOW = 8 << 20  # no level below 20 has more; it is allocated
_ZSTD_BLOCK_HEADER = 3
_ZSTD_CHECKSUM = 4
_ZSTD_RLE, _ZSTD_COMPRESSED, _ZSTD_RESERVED = 1, 2, 3


class CodecError(CorruptBatch):
    """The payload of a batch cannot be decompressed."""


class UnknownCodec(CodecError):
    """The attributes name a codec that does not exist."""


class OutputTooLarge(CodecError):
    """The payload would decompress to more than the caller allows."""


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress with a `level` of Kafka's `compression.<codec>.level`."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_FORMAT)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        return _compress_snappy(data)
    if codec == LZ4:
        return _compress_lz4(data, level)
    if codec == ZSTD:
        # Create a new one each time: sharing one between threads would corrupt its memory.
        return zstandard.ZstdCompressor(
            level=_ZSTD_DEFAULT_LEVEL if level is None else level
        ).compress(data)
    raise UnknownCodec(f"there is no codec {codec}")


def decompress(codec: int, data: Buffer, limit: int) -> bytes:
    """Decompress to at most `limit` bytes. Raises CodecError if that is impossible."""
    if codec == NONE:
        if len(data) > limit:
            raise OutputTooLarge(f"{len(data)} bytes of records, more than {limit}")
        return bytes(data)
    try:
        unpack = _DECOMPRESSORS[codec]
    except KeyError:
        raise UnknownCodec(f"there is no codec {codec}") from None
    return unpack(data, limit)


def most_unpacked(codec: int, data: Buffer, limit: int) -> int:
    """Return an upper bound of the decompressed size, as far as it is known beforehand."""
    return min(limit, len(data) * _MAX_RATIOS.get(codec, limit))


def _too_large(name: str, limit: int) -> OutputTooLarge:
    return OutputTooLarge(f"{name} payload decompresses to more than {limit} bytes")


def _inputs(data: Buffer) -> Iterator[memoryview]:
    """Yield the input in pieces: a library copies everything that it has not consumed."""
    view = memoryview(data)
    for at in range(0, len(view), _INPUT):
        yield view[at : at + _INPUT]


def _gather(pieces: Iterator[bytes], name: str, limit: int) -> bytes:
    """Join the pieces of a payload, until there are none or they are too large together."""
    out = BytesIO()  # returns its buffer without a copy
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise _too_large(name, limit)
        out.write(piece)
    return out.getvalue()


def _decompress_gzip(data: Buffer, limit: int) -> bytes:
    unpacker = zlib.decompressobj(_GZIP_FORMAT)
    try:
        if len(data) > _PIECE:
            return _gather(_gzip_pieces(data), "gzip", limit)
        # One byte more than allowed distinguishes "just fits" from "too large".
        out = unpacker.decompress(data, min(limit, _PIECE) + 1)
        if len(out) > _PIECE:
            return _gather(_gzip_pieces(data), "gzip", limit)
        if len(out) > limit:
            raise _too_large("gzip", limit)
        if not unpacker.eof or unpacker.unused_data:
            raise CodecError(_WRONG_END.format("gzip"))
    except zlib.error as error:
        raise CodecError(f"corrupt gzip payload: {error}") from error
    return out


def _gzip_pieces(data: Buffer) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(_GZIP_FORMAT)
    for some in _inputs(data):
        if unpacker.eof:
            raise CodecError(_WRONG_END.format("gzip"))
        yield unpacker.decompress(some, _PIECE)
        while unpacker.unconsumed_tail:
            yield unpacker.decompress(unpacker.unconsumed_tail, _PIECE)
    while not unpacker.eof and (piece := unpacker.decompress(b"", _PIECE)):
        yield piece
    if not unpacker.eof or unpacker.unused_data:
        raise CodecError(_WRONG_END.format("gzip"))


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for at in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(bytes(view[at : at + _XERIAL_BLOCK])))
        out += _BLOCK_LENGTH.pack(len(block))
        out += block
    return bytes(out)


def _decompress_snappy(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, limit, limit)
    if len(view) < len(_XERIAL_HEADER):
        raise CodecError("snappy payload ends inside its header")
    out = BytesIO()
    size, at, end = 0, len(_XERIAL_HEADER), len(view)
    while at < end:
        start = at + _BLOCK_LENGTH.size
        if start > end:
            raise CodecError("snappy payload ends inside a block length")
        (length,) = _BLOCK_LENGTH.unpack_from(view, at)
        at = start + length
        if at > end:
            raise CodecError("snappy payload ends inside a block")
        size += out.write(_decompress_snappy_block(view[start:at], limit - size, limit))
    return out.getvalue()


def _decompress_snappy_block(block: memoryview, room: int, limit: int) -> bytes:
    raw = bytes(block)
    try:
        # Snappy allocates what the block declares, so check that first.
        declared = cramjam.snappy.decompress_raw_len(raw)
        if declared > room:
            raise _too_large("snappy", limit)
        if declared > len(raw) * _SNAPPY_MAX_RATIO:
            raise CodecError(f"snappy block of {len(raw)} bytes declares {declared}")
        if declared > _PIECE:
            out = BytesIO(bytes(declared))
            with out.getbuffer() as view:
                written = cramjam.snappy.decompress_raw_into(raw, view)
            if written != declared:
                raise CodecError(f"snappy block of {written} bytes declares {declared}")
            return out.getvalue()
        return bytes(cramjam.snappy.decompress_raw(raw))
    except cramjam.DecompressionError as error:
        raise CodecError(f"corrupt snappy payload: {error}") from error


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    if level is None or level == _KAFKA_DEFAULT_LZ4_LEVEL:
        level = _LZ4_FAST
    packed: bytes = lz4.frame.compress(
        data, compression_level=min(level, _LZ4_HIGHEST), block_linked=False
    )
    return packed


def _decompress_lz4(data: Buffer, limit: int) -> bytes:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    # The library allocates all of max_length at once.
    at_most = min(limit, len(data) * _LZ4_MAX_RATIO, _PIECE) + 1
    try:
        if len(data) > _PIECE:
            return _gather(_lz4_pieces(data), "lz4", limit)
        out: bytes = unpacker.decompress(data, max_length=at_most)
        if len(out) > _PIECE:
            return _gather(_lz4_pieces(data), "lz4", limit)
        if len(out) > limit:
            raise _too_large("lz4", limit)
        if not unpacker.eof or unpacker.unused_data:
            raise CodecError(_WRONG_END.format("lz4"))
    except RuntimeError as error:
        raise CodecError(f"corrupt lz4 payload: {error}") from error
    return out


def _lz4_pieces(data: Buffer) -> Iterator[bytes]:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    for some in _inputs(data):
        if unpacker.eof:
            raise CodecError(_WRONG_END.format("lz4"))
        yield unpacker.decompress(some, max_length=_PIECE)
        while not unpacker.eof and not unpacker.needs_input:
            yield unpacker.decompress(b"", max_length=_PIECE)
    if not unpacker.eof or unpacker.unused_data:
        raise CodecError(_WRONG_END.format("lz4"))


def _decompress_zstd(data: Buffer, limit: int) -> bytes:
    largest = 0
    try:
        frame = zstandard.get_frame_parameters(data)
        start = zstandard.frame_header_size(data)
        largest = _measure_zstd(memoryview(data), start, frame.has_checksum)
        declared = frame.content_size
        if declared != zstandard.CONTENTSIZE_UNKNOWN:
            # The library allocates what the frame declares, and ignores max_output_size.
            if declared > largest:
                raise CodecError(f"zstd frame of at most {largest} bytes declares {declared}")
            if declared > limit:
                raise _too_large("zstd", limit)
        if largest == 0:
            return b""  # a max_output_size of 0 would mean no limit
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=min(largest, limit))
    except zstandard.ZstdError as error:
        if largest > limit and _exceeds(data, limit):
            raise _too_large("zstd", limit) from None
        raise CodecError(f"corrupt zstd payload: {error}") from error


def _exceeds(data: Buffer, limit: int) -> bool:
    """Check whether a zstd frame that could not be decompressed is sound up to `limit` and
    continues: the library does not distinguish that from a corrupt one."""
    try:
        unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
        with unpacker.stream_reader(data) as reader:
            left = limit + 1
            while left > 0:
                piece = reader.read(min(left, _ZSTD_MAX_BLOCK))
                if not piece:
                    return False
                left -= len(piece)
    except zstandard.ZstdError:
        return False
    return True


def _measure_zstd(data: memoryview, at: int, has_checksum: bool) -> int:
    """Return the maximum decompressed size of the frame whose blocks begin at `at`.

    This walks the block headers (one for up to 128 KiB of content): the library itself neither
    bounds its allocation for a frame of unknown size nor notices what follows a frame.
    """
    largest = 0
    end = len(data) - (_ZSTD_CHECKSUM if has_checksum else 0)
    last = False
    while not last:
        after_header = at + _ZSTD_BLOCK_HEADER
        if after_header > end:
            raise CodecError("zstd payload ends inside a frame")
        header = int.from_bytes(data[at:after_header], "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == _ZSTD_RESERVED or size > _ZSTD_MAX_BLOCK:
            raise CodecError("corrupt zstd payload: no such block")
        at = after_header + (1 if kind == _ZSTD_RLE else size)
        largest += _ZSTD_MAX_BLOCK if kind == _ZSTD_COMPRESSED else size
    if at != end:
        raise CodecError("zstd payload does not end where the batch does")
    return largest


_DECOMPRESSORS: dict[int, Callable[[Buffer, int], bytes]] = {
    GZIP: _decompress_gzip,
    SNAPPY: _decompress_snappy,
    LZ4: _decompress_lz4,
    ZSTD: _decompress_zstd,
}
_MAX_RATIOS = {NONE: 1, GZIP: _GZIP_MAX_RATIO, SNAPPY: _SNAPPY_MAX_RATIO, LZ4: _LZ4_MAX_RATIO}
