"""Expressions that clients send, in RE2 syntax: they match whole names in linear time.

Consumers subscribe with them, subscriptions to clients' metrics select clients with them, and
ListTransactions filters with them. Python's `re` backtracks: one expression could stop a worker.
Matching many names still takes time, so it is done in slices (`match_steps`) or in a thread: RE2
releases the interpreter while it matches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import lru_cache
from typing import Any

import re2

# Compiling holds the interpreter, and so does a match that extends its program: these limits keep
# each below 5 ms, whatever the expression.
MAX_MEMORY = 1 << 18  # of a compiled expression
MAX_COST = 4_096  # about characters
MAX_DEPTH = 250  # of parentheses
_UNICODE_CLASS, _UNICODE_COST = re.compile(r"\\[pP]"), 255  # each is hundreds of ranges
_REPEAT_COST = 63  # each is written out, up to 1,000 times
_RUNE_COST = 7
_PARENTHESES = re.compile(r"\\.|[()]", re.DOTALL)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.never_capture = True
    options.log_errors = False
    options.max_mem = MAX_MEMORY
    return re2.compile(pattern, options)


def is_valid(pattern: str) -> bool:
    if _is_costly(pattern):
        return False
    try:
        _compiled(pattern)
    except re2.error:
        return False
    return True


def matches_wholly(pattern: str, text: str) -> bool:
    """`pattern` is valid."""
    return _compiled(pattern).fullmatch(text) is not None


def _is_costly(pattern: str) -> bool:
    cost = len(pattern)
    if cost > MAX_COST:
        return True
    cost += _UNICODE_COST * len(_UNICODE_CLASS.findall(pattern))
    cost += _REPEAT_COST * pattern.count("{")
    if not pattern.isascii():
        cost += _RUNE_COST * sum(letter > "\x7f" for letter in pattern)
    return cost > MAX_COST or (pattern.count("(") > MAX_DEPTH and _depth(pattern) > MAX_DEPTH)


def _depth(pattern: str) -> int:
    deepest = depth = 0
    for found in _PARENTHESES.findall(pattern):
        if found == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif found == ")":
            depth -= 1
    return deepest


def match_steps(
    patterns: Iterable[str],
    names: Iterable[str],
    may_see: Callable[[str, str], bool] | None = None,
) -> Generator[None, None, Mapping[str, frozenset[str]]]:
    """Yields between names, as one may take milliseconds; returns those that match, by pattern.

    `may_see`: whether a pattern may match a name, if clients do not see all topics.
    """
    known = list(names)
    matches: dict[str, frozenset[str]] = {}
    for pattern in patterns:
        fullmatch = _compiled(pattern).fullmatch
        found: list[str] = []
        for name in known:
            if fullmatch(name) and (may_see is None or may_see(pattern, name)):
                found.append(name)
            yield
        matches[pattern] = frozenset(found)
    return matches
