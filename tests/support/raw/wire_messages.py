"""Messages of every API and version that is declared, made at random from their declarations.

Seeded, so that a failure names a seed and can be had again. Values lie within their types' ranges
and favour the edges: extremes of integers, lengths on both sides of where a varint grows, nulls
wherever the version allows one, tagged fields set and unset.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from moldau.broker.wire.apis import APIS, NOT_SERVED, Api
from moldau.broker.wire.batch import Buffer
from moldau.broker.wire.schema import NO_UUID, Codec, Field, Message, fields_of

INTEGERS = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}
LONGEST_STRING = (1 << 15) - 1
# A compact length is one byte up to 126, two up to 16382.
EDGE_LENGTHS = (0, 1, 126, 127, 128)
LONG_LENGTHS = (16382, 16383, 16384, 20000)
ALPHABETS = ("abcXYZ019.-_", "žluťoučký kůň", "日本語テキスト", "a\U0001f600\U0001f9ff\u0000")


class Case(NamedTuple):
    """A request or a response of an API in one version."""

    api: Api
    version: int
    side: str

    def __str__(self) -> str:
        return f"{self.api.name}-{self.side}-v{self.version}"

    @property
    def is_request(self) -> bool:
        return self.side == "request"

    @property
    def message(self) -> type[Message]:
        return self.api.request if self.is_request else self.api.response

    @property
    def flexible(self) -> bool:
        return self.api.is_flexible(self.version)

    @property
    def codec(self) -> Codec:
        if self.is_request:
            return self.api.request_codec(self.version)
        return self.api.response_codec(self.version)

    def encode(self, message: Message) -> bytes:
        parts: list[Buffer] = []
        self.codec.encode(message, parts)
        return b"".join(parts)

    def decode(self, encoded: bytes) -> Message:
        """The message that takes up all of `encoded`."""
        message: Message
        message, end = self.codec.decode(encoded, 0)
        assert end == len(encoded), f"{self}: {len(encoded) - end} bytes were not read"
        return message


CASES = [
    Case(api, version, side)
    for api in (*APIS.values(), *NOT_SERVED)
    for version in range(api.advertised_from, api.highest + 1)
    for side in ("request", "response")
]
SERVED = [case for case in CASES if case.api.key in APIS]


def for_each(cases: Iterable[Case]) -> Callable[[Callable[[Case], None]], Any]:
    """Run a test with every case: one test for each message, whose versions take turns.

    A test of its own for each of thousands of cases would cost more than what it does. A failure
    names the case.
    """
    by_message: dict[str, list[Case]] = {}
    for case in cases:
        by_message.setdefault(f"{case.api.name}-{case.side}", []).append(case)

    def decorate(test: Callable[[Case], None]) -> Any:
        def run(message: str) -> None:
            for case in by_message[message]:
                try:
                    test(case)
                except Exception as fault:
                    fault.add_note(f"in {case}")
                    raise

        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        return pytest.mark.parametrize("message", by_message)(run)

    return decorate


def layout(case: Case) -> tuple[Any, ...]:
    """Everything that the generated code of a codec depends on."""
    return (case.message, case.flexible, _layout(case.message, case.version))


def _layout(message: type[Message], version: int) -> tuple[Any, ...]:
    return tuple(
        (
            field.name,
            field.nullable(version),
            field.rule.tag if field.tagged(version) else None,
            _layout(field.struct, version) if field.struct is not None else None,
        )
        for field in fields_of(message)
        if field.present(version)
    )


def one_of_each_layout(cases: Sequence[Case]) -> list[Case]:
    """The lowest version of each layout: many versions change only what a message means."""
    return [*{layout(case): case for case in reversed(cases)}.values()][::-1]


LAYOUTS = one_of_each_layout(CASES)


def random_messages(case: Case, count: int, seed: int = 0) -> Iterator[Message]:
    """The default message, one with everything empty or null, and `count` random ones."""
    yield case.message()
    yield Maker(random.Random(seed), case.version, bare=True).make(case.message)
    for number in range(count):
        rng = random.Random(f"{case} {seed} {number}")
        yield Maker(rng, case.version).make(case.message)


class Maker:
    """Makes random messages for one version."""

    def __init__(self, rng: random.Random, version: int, *, bare: bool = False) -> None:
        self.rng = rng
        self.version = version
        self.bare = bare  # nulls and empty arrays wherever they are allowed

    def make(self, message: type[Message], depth: int = 0) -> Message:
        values: dict[str, Any] = {}
        for field in fields_of(message):
            if not field.present(self.version):
                continue
            if field.tagged(self.version) and (self.bare or self.rng.random() < 0.4):
                continue
            values[field.name] = self.value(field, depth)
        return message(**values)

    def value(self, field: Field, depth: int) -> Any:
        # A tagged structure has no null on the wire: it is absent instead.
        can_be_null = field.nullable(self.version) and not (
            field.tagged(self.version) and field.kind == "struct"
        )
        if can_be_null and (self.bare or self.rng.random() < 0.25):
            return None
        if not field.is_array:
            return self.element(field, depth)
        if self.bare:
            return []
        count = self.rng.choice((0, 1, 1, 2, 3))
        if field.kind in INTEGERS and self.rng.random() < 0.05:
            count = self.rng.choice(EDGE_LENGTHS)
        return [self.element(field, depth + 1) for _ in range(count)]

    def element(self, field: Field, depth: int) -> Any:
        kind = field.kind
        if kind in INTEGERS:
            return self.integer(*INTEGERS[kind])
        if kind == "struct":
            assert field.struct is not None
            return self.make(field.struct, depth)
        if kind == "bool":
            return self.rng.random() < 0.5
        if kind == "float64":
            return self.rng.choice((0.0, -1.5, self.rng.random() * 1e300))
        if kind == "uuid":
            return self.rng.choice((NO_UUID, self.rng.randbytes(16)))
        if kind == "string":
            return self.text(depth)
        assert kind in ("bytes", "records", "int8_array"), kind
        return self.rng.randbytes(self.length(depth))

    def integer(self, lowest: int, highest: int) -> int:
        if self.rng.random() < 0.5:
            edges = (lowest, lowest + 1, 0, 1, 127, highest - 1, highest)
            return self.rng.choice(edges)
        return self.rng.randint(lowest, highest)

    def length(self, depth: int) -> int:
        chance = self.rng.random()
        if chance < 0.04 / (depth + 1):
            return self.rng.choice(LONG_LENGTHS)
        if chance < 0.3:
            return self.rng.choice(EDGE_LENGTHS)
        return self.rng.randint(0, 24)

    def text(self, depth: int) -> str:
        size = self.length(depth)
        alphabet = self.rng.choice(ALPHABETS)
        text = "".join(self.rng.choices(alphabet, k=size))
        while len(text.encode()) > LONGEST_STRING:
            text = text[: len(text) // 2]
        return text
