"""The Lua scripts of the store, one file each, and the loader for them.

A file opens with what its script does, `-- KEYS:` and `-- ARGV:`. A first line
`#!lua flags=allow-oom` lets a script run in a full store. A script that writes to a slot compares
the slot's epoch first (`broker/store/groups.py`). The functions of native topics are a library of
their own: `broker/store/native_library.lua`.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


def script(name: str) -> str:
    """The source of a script as it is sent: without comments and indentation."""
    lines = map(str.strip, (_FOLDER / f"{name}.lua").read_text().splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))


@cache
def sha1(source: str) -> str:
    """The name by which EVALSHA knows a script."""
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
