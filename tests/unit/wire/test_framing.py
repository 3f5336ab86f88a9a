"""Frames come out whole however the bytes arrive, collected or only tracked."""

import struct
from collections.abc import Callable
from itertools import cycle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moldau.broker.wire.framing import (
    FIRST_FRAME_MEMORY,
    FIRST_GROWTH,
    MIN_REQUEST,
    MIN_RESPONSE,
    SHARED_BUFFER,
    FrameReader,
    FrameTracker,
    InvalidFrameSize,
)

MIB = 1 << 20
MAX_FRAME = 16 * MIB

sizes = st.one_of(
    st.integers(MIN_REQUEST, 2_000),
    st.integers(0, 3).map(lambda power: 65_536 << power),
    st.integers(60_000, 3 * MIB),
    st.sampled_from([SHARED_BUFFER - 4, SHARED_BUFFER, SHARED_BUFFER + 1]),
    st.sampled_from([MIB, MIB + 1, 2 * MIB, 5 * MIB]),
)
piece_sizes = st.lists(
    st.one_of(st.integers(1, 64), st.integers(1, 300_000), st.just(1 << 30)),
    min_size=1,
    max_size=12,
)


def frame_of(number: int, size: int) -> bytes:
    """Bytes each of which tells its place."""
    pattern = struct.pack(">I", number) + bytes(range(251))
    return (pattern * (size // len(pattern) + 1))[:size]


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def read(reader: FrameReader, data: bytes, next_piece: Callable[[], int]) -> list[bytes]:
    """Receive bytes as an event loop would: into the buffer that the reader names."""
    frames: list[bytes] = []
    view = memoryview(data)
    while view:
        if reader.is_full:
            reader.grow()
        taken = min(len(reader.buffer), next_piece(), len(view))
        reader.buffer[:taken] = view[:taken]
        frames += map(bytes, reader.received(taken))
        view = view[taken:]
    return frames


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
@given(st.lists(sizes, min_size=1, max_size=6), piece_sizes)
def test_frames_arrive_whole_however_they_are_cut(lengths: list[int], drawn: list[int]) -> None:
    frames = [frame_of(number, size) for number, size in enumerate(lengths)]
    pieces = cycle([*drawn, 100_000])  # not only crumbs, or it takes forever
    reader = FrameReader(MAX_FRAME)
    assert read(reader, framed(*frames), lambda: next(pieces)) == frames
    assert not reader.is_inside_frame


def test_a_large_frame_that_outgrows_its_memory_in_mid_buffer_is_whole() -> None:
    """Pieces that do not divide the memory a frame is given, so that one straddles its end."""
    frame = frame_of(3, 5 * MIB + 17)
    for piece in (200_000, 99_991, 250_001, 262_144):
        got = read(FrameReader(MAX_FRAME), framed(frame, frame), lambda piece=piece: piece)  # type: ignore[misc]
        assert got == [frame, frame]


def test_the_rest_of_a_large_frame_is_received_into_its_own_memory() -> None:
    reader = FrameReader(MAX_FRAME)
    frame = frame_of(1, 4 * MIB)
    data = framed(frame)
    own_memory = 0
    while data:
        taken = min(len(reader.buffer), len(data))
        own_memory += taken if len(reader.buffer) > SHARED_BUFFER else 0
        reader.buffer[:taken] = data[:taken]
        got = reader.received(taken)
        data = data[taken:]
        if reader.is_full:
            reader.grow()
    assert got == [frame]
    assert own_memory > 3 * MIB


def test_1_a_claimed_length_is_not_given_memory() -> None:
    reader = FrameReader(100 * MIB)
    read(reader, struct.pack(">i", 100 * MIB) + b"x" * 10, lambda: 1 << 30)
    assert 0 < reader.memory <= FIRST_FRAME_MEMORY


class Short:
    is_short = True


@settings(max_examples=60, deadline=None)
@given(st.integers(MIN_REQUEST, 9 * MIB), piece_sizes, st.booleans())
def test_1_memory_follows_what_has_arrived(size: int, drawn: list[int], is_short: bool) -> None:
    reader = FrameReader(MAX_FRAME, Short() if is_short else None)
    data, pieces = framed(frame_of(1, size)), cycle([*drawn, 100_000])
    at = grown = 0
    while at < len(data):
        if reader.is_full:
            wanted = reader.next_memory
            assert reader.memory < wanted <= max(2 * reader.have, FIRST_FRAME_MEMORY)
            reader.grow()
            grown += 1
            assert reader.memory == wanted
        taken = min(len(reader.buffer), next(pieces), len(data) - at)
        reader.buffer[:taken] = data[at : at + taken]
        frames = reader.received(taken)
        at += taken
        assert reader.memory <= max(FIRST_GROWTH * reader.have, FIRST_FRAME_MEMORY)
        assert reader.has_changed or reader.memory == 0
    assert [len(frame) for frame in frames] == [size]
    assert reader.memory == 0
    assert grown <= 12  # it doubles: the bytes are copied about twice


def test_1_without_spare_memory_a_frame_begins_with_what_has_arrived_of_it() -> None:
    reader = FrameReader(MAX_FRAME, Short())
    read(reader, struct.pack(">i", MIB) + b"x" * 1000, lambda: 1 << 30)
    assert (reader.memory, reader.have, reader.size) == (1000, 1000, MIB)
    assert reader.is_full
    reader.grow()
    assert (reader.memory, reader.is_full) == (FIRST_FRAME_MEMORY, False)


@pytest.mark.parametrize("length", [-1, -(1 << 31), 0, 7, MAX_FRAME + 1, (1 << 31) - 1])
@pytest.mark.parametrize("piece", [1, 3, 1 << 30])
def test_1_a_length_that_no_frame_can_have_is_refused(length: int, piece: int) -> None:
    data = struct.pack(">i", length) + b"x" * 64
    with pytest.raises(InvalidFrameSize, match=f"a frame of {length} bytes"):
        read(FrameReader(MAX_FRAME), data, lambda: piece)
    with pytest.raises(InvalidFrameSize, match=f"a frame of {length} bytes"):
        FrameTracker(MIN_REQUEST, MAX_FRAME).size_at(data, 0)


def test_a_length_is_judged_before_the_rest_of_its_frame_has_come() -> None:
    with pytest.raises(InvalidFrameSize):
        read(FrameReader(MAX_FRAME), framed(frame_of(1, 20)) + b"\x7f\xff\xff\xff", lambda: 1 << 30)


@given(st.lists(st.integers(MIN_RESPONSE, 2_000), min_size=1, max_size=6), piece_sizes)
def test_a_tracker_finds_where_frames_begin_in_any_pieces(
    lengths: list[int], drawn: list[int]
) -> None:
    data = framed(*(frame_of(number, size) for number, size in enumerate(lengths)))
    tracker = FrameTracker(MIN_RESPONSE)
    found, pieces, begun, kept = [], cycle([*drawn, 100]), 0, b""
    while begun < len(data):
        piece = kept + data[begun : begun + next(pieces)]
        begun += len(piece) - len(kept)
        kept = b""
        at = tracker.resume(len(piece))
        while at < len(piece):
            size = tracker.size_at(piece, at)
            if size is None:
                kept = piece[at:]
                break
            found.append(size)
            at = tracker.enter(at, size, len(piece))
    assert found == lengths
    assert tracker.left == 0
