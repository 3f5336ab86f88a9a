"""Patterns of transactional ids: as `re` has them, in bounded time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.txn.pattern import InvalidPattern, Pattern

ALPHABET = "ab-1_A"


def matches(pattern: str, text: str) -> bool:
    running = Pattern(pattern).matching(text)
    while True:
        try:
            next(running)
        except StopIteration as end:
            return bool(end.value)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", ["orders"], ["order", "orders-1", "my orders", ""]),
        ("orders-.*", ["orders-", "orders-1"], ["orders"]),
        ("a|b|", ["a", "b", ""], ["ab"]),
        (r"app-\d{2,3}", ["app-12", "app-123"], ["app-1", "app-1234", "app-1x"]),
        (r"x{2}", ["xx"], ["x", "xxx"]),
        (r"x{2,}", ["xx", "xxxxx"], ["x"]),
        ("x{a}", ["x{a}"], ["xa"]),
        ("(?:ab)+c?", ["ab", "ababc"], ["c", "abb"]),
        ("(?P<n>a)(?<m>b)", ["ab"], ["a"]),
        ("[a-c_]+", ["abc_"], ["d", "-"]),
        ("[^a-c]", ["d"], ["a", "dd"]),
        (r"[\w.-]+", ["a.b-c_9"], ["a b"]),
        ("[]a]+", ["]a"], ["b"]),
        ("[a-]+", ["a-"], ["b"]),
        (r"a\.b", ["a.b"], ["axb"]),
        (r"\Qa.*b\E+", ["a.*b", "a.*bbb"], ["axb", "a.*b+"]),
        (r"\Qa.b", ["a.b"], ["axb"]),
        (r"\x41", ["A"], ["a"]),
        ("^a$", ["a"], ["aa"]),
        ("a^b", [], ["ab", "a^b"]),
        (r"\bab\b-\b1", ["ab-1"], ["ab1"]),
        (r"\Aa\z", ["a"], ["b"]),
        ("(?i)Ab[c-d]", ["aBC", "ABd"], ["abe"]),
        (".", ["ü", "x"], ["", "\n"]),
        ("(a*)*", ["", "aaa"], ["b"]),
        ("(|a)+", ["", "aa"], ["b"]),
        ("a*?b??", ["", "aab"], ["ba"]),
    ],
)
def test_what_matches(pattern: str, matching: list[str], others: list[str]) -> None:
    for text in matching:
        assert matches(pattern, text), (pattern, text)
    for text in others:
        assert not matches(pattern, text), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "(a", "a)", "[", "[a", "[b-a]", "*a", "a**", "a{2}{3}", "a{3,2}", "a{1001}",
        "\\", "\\y", "\\1", "(a)\\1", "(?=a)", "(?!a)", "(?<=a)", "(?>a)", "[[:alpha:]]",
        "\\xg1", "((a{100}){100}){100}", "a" * 257, "a++", "[a-\\d]",
    ],
)  # fmt: skip
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        Pattern(pattern)


parts = st.recursive(
    st.sampled_from([*ALPHABET, ".", "[ab]", "[^a1]", "[a-z]", r"\w", r"\d", r"\b", "^", "$"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map("".join).map("({})".format),
        st.lists(inner, min_size=1, max_size=3).map("|".join).map("(?:{})".format),
        st.tuples(
            inner.map("(?:{})".format), st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "*?"])
        ).map("".join),
    ),
    max_leaves=8,
)


@given(parts, st.text(ALPHABET, max_size=8))
def test_the_same_as_re(pattern: str, text: str) -> None:
    assert matches(pattern, text) == (re.fullmatch(pattern, text, re.ASCII) is not None)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(.*)*x", "(a*)*b", "((a{1,9}){1,9})*b"])
def test_what_would_stop_a_worker_elsewhere(pattern: str) -> None:
    """It takes steps in proportion to the length, with pauses in between."""
    assert sum(1 for _ in Pattern(pattern).matching("a" * 3000)) < 3000
