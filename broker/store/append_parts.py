"""The parts of the embedded store's append-only file, as the server's manifest lists them.

appendonlydir/appendonly.aof.manifest      one line for each part
appendonlydir/appendonly.aof.2.base.rdb    never changes
appendonlydir/appendonly.aof.2.incr.aof    only grows; the last one is written
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PARTS_NAME = "appendonly.aof.manifest"
_PART = re.compile(r"file (\S+) seq (\d+) type ([bih])")


class Part(NamedTuple):
    """A file of the append-only file."""

    name: str
    number: int
    kind: str  # b: base, i: increment, h: replaced, about to be removed


def read_parts(text: str) -> list[Part]:
    """The parts that are loaded, in order. Raises ValueError."""
    parts = []
    for line in text.splitlines():
        found = _PART.match(line)
        if found is None or "/" in found[1]:
            raise ValueError(f"not a line of an append-only file's manifest: {line!r}")
        parts.append(Part(found[1], int(found[2]), found[3]))
    loaded = [part for part in parts if part.kind != "h"]
    if not loaded or loaded[-1].kind != "i":
        raise ValueError("no part of the append-only file is being written")
    return loaded


def parts_text(parts: Iterable[Part]) -> str:
    return "".join(f"file {part.name} seq {part.number} type {part.kind}\n" for part in parts)


def link_parts(source: Path, made: Path, *, is_behind: bool = True) -> None:
    """Make `made/appendonlydir` with links to the parts in `source`, for a server that must not
    change them: it may not cut what lacks its end (`aof-load-truncated`), and writes to the last
    part.

    `is_behind`: an empty part stands behind them. Raises OSError, ValueError.
    """
    source, target = source.resolve(), made / "appendonlydir"
    target.mkdir(mode=0o700)
    parts = read_parts((source / PARTS_NAME).read_text())
    for part in parts:
        (target / part.name).symlink_to(source / part.name)
    if is_behind:
        number = parts[-1].number + 1
        parts.append(Part(f"appendonly.aof.{number}.incr.aof", number, "i"))
        (target / parts[-1].name).touch(mode=0o600)
    (target / PARTS_NAME).write_text(parts_text(parts))
