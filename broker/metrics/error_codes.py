"""Finds the error codes in a response, at any depth.

Every encoded response passes here, also a Fetch of a hundred partitions. Therefore a function of
nested loops is generated for each type of message, which needs no call for each structure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_args, get_origin, get_type_hints

from moldau.broker.wire.schema import Message

Finder = Callable[[Any], list[int]]


class Finders(dict[type[Message], Finder]):
    """Functions by type of message: each lists the error codes, other than 0, of a message."""

    def __missing__(self, kind: type[Message]) -> Finder:
        lines = ["def find(m0):", "    found = []", *_loops(kind, 0), "    return found"]
        names: dict[str, Finder] = {}
        exec(compile("\n".join(lines), f"<error codes of {kind.__name__}>", "exec"), names)
        self[kind] = names["find"]
        return names["find"]


def _loops(kind: type[Message], depth: int) -> Iterator[str]:
    """The code that examines message `m<depth>` and the messages in it."""
    indent, message = "    " * (depth + 1), f"m{depth}"
    hints = get_type_hints(kind)
    if "error_code" in hints:
        yield f"{indent}if {message}.error_code:"
        yield f"{indent}    found.append({message}.error_code)"
    for name, hint in hints.items():
        element = _element_of(hint)
        inner = [] if element is None else list(_loops(element, depth + 1))
        if inner:
            yield f"{indent}for m{depth + 1} in {message}.{name} or ():"
            yield from inner


def _element_of(hint: Any) -> type[Message] | None:
    """The type of message in a list of them, nullable or not."""
    for option in (hint, *get_args(hint)):
        if get_origin(option) is list:
            (element,) = get_args(option)
            if isinstance(element, type) and issubclass(element, Message):
                return element
    return None


finders = Finders()
