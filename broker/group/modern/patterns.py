"""Subscriptions by expression: RE2 syntax, which matches whole names in linear time.

Python's `re` backtracks: one expression could stop a worker. Matching names from Python takes some
microseconds each, so it is done in slices outside of the group (`match_steps`), which goes on
without the topics that an expression stands for until they are known.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import lru_cache
from typing import Any

try:
    import re2
except ImportError:  # there are no wheels for every platform
    re2 = None

IS_AVAILABLE = re2 is not None
MAX_MEMORY = 1 << 20  # of one expression
MAX_LENGTH = 4_096
SLICE = 64  # names between two yields


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.never_capture = True
    options.log_errors = False
    options.max_mem = MAX_MEMORY
    return re2.compile(pattern, options)


def is_valid(pattern: str) -> bool:
    if not IS_AVAILABLE or len(pattern) > MAX_LENGTH:
        return False
    try:
        _compiled(pattern)
    except re2.error:
        return False
    return True


def matches_wholly(pattern: str, text: str) -> bool:
    """For a pattern that is valid."""
    return _compiled(pattern).fullmatch(text) is not None


def match_steps(
    patterns: Iterable[str],
    names: Iterable[str],
    may_see: Callable[[str, str], bool] | None = None,
) -> Generator[None, None, Mapping[str, frozenset[str]]]:
    """Yields between slices; returns the names that match, by pattern.

    `may_see`: whether a pattern may stand for a name, where clients do not see all topics.
    """
    known = list(names)
    matches: dict[str, frozenset[str]] = {}
    for pattern in patterns:
        fullmatch = _compiled(pattern).fullmatch
        found: list[str] = []
        for start in range(0, len(known), SLICE):
            some = [name for name in known[start : start + SLICE] if fullmatch(name)]
            found += some if may_see is None else [name for name in some if may_see(pattern, name)]
            yield
        matches[pattern] = frozenset(found)
    return matches


class Pattern:
    """An expression in use."""

    __slots__ = ("members", "topics")

    def __init__(self, topics: frozenset[str] | None = None) -> None:
        self.topics = topics
        """None: not resolved yet; it stands for no topics."""
        self.members = 0
