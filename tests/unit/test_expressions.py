"""Expressions as Kafka has them: it uses RE2J, Moldau RE2.

`re2j.json` has what RE2J 1.8 says to each expression: null if it does not compile, else for each
name whether it matches, 1 or 0.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moldau.broker import expressions

RECORDED = json.loads((Path(__file__).parent / "re2j.json").read_text())
NAMES: list[str] = RECORDED["names"]
# Where Moldau differs, and why. None of them is an expression that stands for other topics.
ONLY_RE2J = {
    # More than 1,000 repetitions, nested: RE2 counts them together.
    "(a{100}){11}",
    "((a{100}){100}){100}",
    # Too large once compiled.
    r"\pL{1000}",
    r"(\pL{100}){5}",
}
ONLY_RE2 = {
    "(?P<n>a)(?P<n>b)",  # names of groups are not looked at
    r"\C",  # any byte
    r"\Ca",
    # Scripts that RE2J's Unicode tables do not have; no topic's name has such letters.
    r"\p{Adlam}",
    r"\p{Chorasmian}",
    r"\p{Vithkuqi}",
    r"\p{Kawi}",
    r"\p{Zanabazar_Square}",
}


def test_8_24_expressions_stand_for_the_topics_they_stand_for_in_kafka() -> None:
    valid = [one for one in RECORDED["matches"] if expressions.is_valid(one)]
    steps = expressions.match_steps(valid, NAMES)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
            break
    differ = {
        one: sorted(found[one])
        for one in valid
        if (bits := RECORDED["matches"][one]) is not None
        and found[one] != {name for name, bit in zip(NAMES, bits, strict=True) if bit == "1"}
    }
    assert not differ


def test_8_24_what_compiles_in_kafka_and_what_does_not() -> None:
    only_re2j, only_re2 = set(), set()
    for expression, bits in RECORDED["matches"].items():
        is_valid = expressions.is_valid(expression)
        if bits is not None and not is_valid:
            only_re2j.add(expression)
        elif bits is None and is_valid:
            only_re2.add(expression)
    assert only_re2j == ONLY_RE2J
    assert only_re2 == ONLY_RE2


@pytest.mark.parametrize(
    "expression",
    [
        r"\pL" * 1_360,
        "(?i)" + r"\pL" * 1_000,
        r"[^\pL]" * 680,
        "(a{1000})" * 400,
        ".{1000}" * 500,
        "(|" * 900 + "a" + ")" * 900,
        "a" * 4_097,
        "[" + "".join(chr(0x100 + 2 * one) for one in range(1_300)) + "]{1,30}",
    ],
)
def test_8_25_expressions_that_take_long_to_compile_are_not_compiled(expression: str) -> None:
    """Some of them took a fifth of a second, with the interpreter held."""
    before = expressions._compiled.cache_info().misses
    assert not expressions.is_valid(expression)
    assert expressions._compiled.cache_info().misses == before


def test_8_25_many_alternatives_are_no_problem() -> None:
    prefixes = "|".join(f"(^topic-{number}.*)" for number in range(200))
    assert expressions.is_valid(prefixes)
    assert expressions.is_valid("|".join(f"topic-{number}" for number in range(400)))
    assert expressions.is_valid("[a-zA-Z0-9._-]{1,249}")
    assert expressions.is_valid(r"[\pL\pN._-]+")
