"""Parts that decoder and encoder generation share: lines of source, and the names they need."""

from __future__ import annotations

import struct
from typing import Any

from moldau.broker.wire.schema import Field, Message

# kind -> struct letter, size
FIXED = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}


class Source:
    """Lines of a function under construction, and the names it needs bound."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.depth = 1
        self._count = 0

    def __call__(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def bind(self, stem: str, value: Any) -> str:
        for name, known in self.names.items():
            if known is value:
                return name
        name = f"{stem}{len(self.names)}"
        self.names[name] = value
        return name

    def packer(self, letters: str, method: str) -> str:
        name = f"{method}_{letters.replace('?', 'z')}"
        self.names[name] = getattr(struct.Struct(">" + letters), method)
        return name


def default_value(src: Source, field: Field) -> str:
    value = field.default
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    if value == []:
        return "[]"
    assert isinstance(value, Message), f"{field.name}: no way to write the default {value!r}"
    return f"{src.bind('T', type(value))}()"  # a new one each time: messages are mutable
