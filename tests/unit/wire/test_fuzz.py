"""Whatever bytes arrive, a decoder answers with a message or with MalformedMessage.

Mutated and random frames for every layout of every API: no other exception, no memory that the
frame does not justify, nothing read beyond the frame. Seeded, so that a failure can be repeated.
"""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

from moldau.broker.wire.batch import Buffer
from moldau.broker.wire.frame import read_request_header, request_frame
from moldau.broker.wire.primitives import MalformedMessage
from moldau.broker.wire.schema import Field, Message, fields_of
from tests.support.raw.wire_messages import (
    INTEGERS,
    LAYOUTS,
    SERVED,
    Case,
    for_each,
    random_messages,
)

MUTANTS_PER_CASE = 120
RANDOM_FRAMES_PER_CASE = 60
DENSE_ELEMENTS = 500

# What a decoder may allocate: a raised exception and its text, and for each byte of the frame what
# the smallest elements cost (three bytes become a structure with an empty list in it).
ALLOWED_BASE = 64 << 10
ALLOWED_PER_BYTE = 48

# Lengths and counts that ask for the impossible, in both encodings; and null.
HOSTILE = [
    bytes.fromhex(text)
    for text in (
        "7fffffff",
        "ffffffff",
        "fffffffe",
        "80000000",
        "00ffffff",
        "7fff",
        "8000",
        "ffffffff0f",
        "ffffffff07",
        "8080808010",
        "ffffffffff",
        "ffff03",
        "00",
    )
]


def mutated(encoded: bytes, rng: random.Random) -> bytes:
    frame = bytearray(encoded)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(frame) + 1)
        match rng.randrange(6):
            case 0 if at < len(frame):
                frame[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(frame):
                frame[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0x81, 0xFE, 0xFF))
            case 2:
                del frame[at:]
            case 3:
                del frame[at : at + rng.randrange(1, 9)]
            case 4:
                frame[at:at] = frame[at : at + rng.randrange(1, 40)]
            case _:
                hostile = rng.choice(HOSTILE)
                frame[at : at + rng.choice((0, len(hostile)))] = hostile
    return bytes(frame)


def weight(value: Any) -> int:
    """Bytes of text and blobs and elements of arrays: each was at least one byte of the frame."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, bytes | memoryview):
        return len(value)
    if isinstance(value, list):
        return len(value) + sum(map(weight, value))
    if isinstance(value, Message):
        return sum(
            weight(getattr(value, field.name))
            for field in fields_of(type(value))
            if field.kind != "uuid"  # of a fixed size, and there even when the version has none
        )
    return 0


def check(case: Case, frame: bytes) -> bool:
    """Decode, and hold what comes out against the frame. Whether there was a message in it."""
    try:
        message, end = case.codec.decode(frame, 0)
    except MalformedMessage:
        return False
    assert 0 <= end <= len(frame)
    assert weight(message) <= end
    again, _ = case.codec.decode(case.encode(message), 0)
    assert again == message
    return True


@for_each(LAYOUTS)
def test_mutated_messages(case: Case) -> None:
    rng = random.Random(f"mutated {case}")
    originals = [case.encode(message) for message in random_messages(case, 10, seed=2)]
    for _ in range(MUTANTS_PER_CASE):
        check(case, mutated(rng.choice(originals), rng))


@for_each(LAYOUTS)
def test_random_bytes(case: Case) -> None:
    rng = random.Random(f"random {case}")
    for _ in range(RANDOM_FRAMES_PER_CASE):
        size = rng.choice((0, 1, 2, 5, 20, 100, 1000))
        # Small bytes look like lengths that fit, and get further into a message.
        alphabet = rng.choice((range(256), range(4), (0, 1, 2, 0xFF)))
        check(case, bytes(rng.choices(alphabet, k=size)))


@for_each(LAYOUTS)
def test_every_prefix_of_a_message_is_malformed(case: Case) -> None:
    for message in random_messages(case, 3, seed=3):
        encoded = case.encode(message)
        for cut in {*range(0, len(encoded), 1 + len(encoded) // 80)}:
            assert not check(case, encoded[:cut])


# --- memory -------------------------------------------------------------------------------------


def peak_of(case: Case, frame: bytes) -> int:
    """What decoding allocated at its peak."""
    decode = case.codec.decode  # compiled before anything is counted
    tracemalloc.start()
    try:
        with contextlib.suppress(MalformedMessage):
            decode(frame, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak


@for_each(LAYOUTS)
def test_a_hostile_length_anywhere_costs_no_memory(case: Case) -> None:
    rng = random.Random(f"hostile {case}")
    hostile_here = [bytes.fromhex("ffffffff0f"), bytes.fromhex("ffffffff07")]
    if not case.flexible:
        hostile_here = [bytes.fromhex("7fffffff"), bytes.fromhex("7fff")]
    for message in random_messages(case, 3, seed=4):
        encoded = case.encode(message)[:2000]
        for at in rng.sample(range(len(encoded)), min(len(encoded), 40)):
            for hostile in hostile_here:
                frame = encoded[:at] + hostile + encoded[at + len(hostile) :]
                assert peak_of(case, frame) <= ALLOWED_BASE + ALLOWED_PER_BYTE * len(frame)


def dense_messages(message: type[Message], version: int) -> Iterator[Message]:
    """Messages, one for each array at any depth, full of its smallest elements."""
    for field in fields_of(message):
        if not field.present(version):
            continue
        if field.is_array:
            yield message(**{field.name: [smallest(field, version)] * DENSE_ELEMENTS})
        if field.struct is not None:
            for inner in dense_messages(field.struct, version):
                yield message(**{field.name: [inner] if field.is_array else inner})


def smallest(field: Field, version: int) -> Any:
    """Few bytes on the wire, much in memory: integers too large for Python's cache of them."""
    if field.struct is not None:
        values = {
            inner.name: smallest(inner, version)
            for inner in fields_of(field.struct)
            if inner.present(version) and not inner.tagged(version) and not inner.is_array
        }
        return field.struct(**values)
    if field.kind in INTEGERS:
        return INTEGERS[field.kind][1]
    empty = {"string": "", "bytes": b"", "records": b"", "int8_array": b"", "uuid": b"\1" * 16}
    return empty.get(field.kind, 0)


@for_each(LAYOUTS)
def test_many_tiny_elements_cost_no_more_than_their_share(case: Case) -> None:
    for message in dense_messages(case.message, case.version):
        frame = case.encode(message)
        assert peak_of(case, frame) <= ALLOWED_BASE + ALLOWED_PER_BYTE * len(frame)


# --- headers and whole requests -----------------------------------------------------------------


@for_each(case for case in SERVED if case.is_request)
def test_mutated_requests_with_their_headers(case: Case) -> None:
    rng = random.Random(f"request {case}")
    for message in random_messages(case, 4, seed=5):
        original = request_frame(case.api, case.version, 1, "client", message)[4:]
        # Mostly in the header: the messages have been seen to above.
        head = 30
        for _ in range(10):
            frame: Buffer = bytearray(mutated(original[:head], rng) + original[head:])
            try:
                header = read_request_header(bytearray(frame))
                if header.api is None:
                    assert header.body_at <= len(frame)
                    continue
                codec = header.api.request_codec(header.api_version)
                _, end = codec.decode(frame, header.body_at)
            except MalformedMessage:
                continue
            assert header.body_at <= end <= len(frame)
