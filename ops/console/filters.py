"""The filter of records: a fixed little language, parsed here and never run as a script. Pure.

    error                       the text is in the key or the value
    key = alice                 key, value, partition, offset, or a header as header.name
    value.user.id != 7          a path into a JSON value
    value.total > 99.5          numbers are compared as numbers
    value.tags contains new     text, or an element of a list
    A and B                     both

Words with spaces are quoted: value.name = "Ann Smith".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from moldau.broker.wire.records import Record, decode_headers
from moldau.ops.console.inputs import parse_number

MAX_LENGTH = 500
_TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|(!=|>=|<=|=|>|<)|([^\s"=<>!]+))')
_OPERATORS = {"=", "!=", ">", "<", ">=", "<=", "contains"}
MISSING = object()


class InvalidFilter(ValueError):
    """The text names what is wrong with it."""


class Comparison(NamedTuple):
    path: str
    operator: str
    value: str


Filter = Callable[[Record], bool]


def parse(text: str) -> Filter:
    """Raises InvalidFilter. An empty filter takes everything."""
    if len(text) > MAX_LENGTH:
        raise InvalidFilter(f"a filter has {MAX_LENGTH} characters at most")
    if not text.strip():
        return lambda record: True
    tokens = _tokens(text)
    if not any(token in _OPERATORS for token, quoted in tokens if not quoted):
        return _containing(text.strip().strip('"'))
    comparisons = []
    for part in _split_at_and(tokens):
        if len(part) != 3 or part[1][1] or part[1][0] not in _OPERATORS:
            shown = " ".join(token for token, _ in part)
            raise InvalidFilter(f"want PATH OPERATOR VALUE, such as value.id = 7, got: {shown}")
        comparisons.append(Comparison(part[0][0], part[1][0], part[2][0]))
    return lambda record: all(_holds(each, record) for each in comparisons)


def _tokens(text: str) -> list[tuple[str, bool]]:
    """Words, and whether they were quoted."""
    found: list[tuple[str, bool]] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise InvalidFilter(f"cannot read the filter from {text[at:].strip()!r} on")
        quoted, operator, word = match.groups()
        if quoted is not None:
            found.append((re.sub(r"\\(.)", r"\1", quoted), True))
        else:
            found.append((operator or word, False))
        at = match.end()
    return found


def _split_at_and(tokens: list[tuple[str, bool]]) -> list[list[tuple[str, bool]]]:
    parts: list[list[tuple[str, bool]]] = [[]]
    for token in tokens:
        if token == ("and", False):
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _containing(text: str) -> Filter:
    wanted = text.encode()
    return lambda record: wanted in (record.key or b"") or wanted in (record.value or b"")


# --- comparing ---


def _holds(comparison: Comparison, record: Record) -> bool:
    found = _look_up(comparison.path, record)
    operator, value = comparison.operator, comparison.value
    if operator == "!=":
        return not _equal(found, value)
    if found is MISSING:
        return False
    if operator == "=":
        return _equal(found, value)
    if operator == "contains":
        if isinstance(found, list):
            return any(_equal(each, value) for each in found)
        return value in _text(found)
    try:
        left, right = float(found), float(value)
    except (TypeError, ValueError):
        left, right = _text(found), value  # type: ignore[assignment]
    return {">": left > right, "<": left < right, ">=": left >= right, "<=": left <= right}[
        operator
    ]


def _equal(found: Any, value: str) -> bool:
    if found is MISSING:
        return False
    if isinstance(found, bool) or found is None:
        return json.dumps(found) == value
    if isinstance(found, int | float):
        try:
            return float(value) == found
        except ValueError:
            return False
    return _text(found) == value


def _text(found: Any) -> str:
    return found if isinstance(found, str) else json.dumps(found)


def _look_up(path: str, record: Record) -> Any:
    first, _, rest = path.partition(".")
    if first == "header":
        for name, value in decode_headers(record.headers):
            if name == rest:
                return "" if value is None else value.decode(errors="replace")
        return MISSING
    if first == "offset":
        return record.offset
    if first not in ("key", "value"):
        return MISSING
    data = record.key if first == "key" else record.value
    if data is None:
        return None
    if not rest:
        return data.decode(errors="replace")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return MISSING
    for step in rest.split("."):
        if isinstance(found, dict) and step in found:
            found = found[step]
        elif isinstance(found, list) and (at := parse_number(step, len(found) - 1)) is not None:
            found = found[at]
        else:
            return MISSING
    return found
