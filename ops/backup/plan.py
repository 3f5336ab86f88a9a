"""Decisions about backups: what they are called, which are removed, where logs go on. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence

# A log of a restored broker goes on above all offsets that the broker gave out after the backup, at
# this rate since then and for a week more. No partition keeps it up: it is some 300 MB/s of the
# smallest records.
RECORDS_PER_S = 1_000_000
WEEK_S = 7 * 86_400
EPOCHS = 1_000  # more leader epochs than a log begins after a backup
NATIVE_MS = 60_000  # clocks of two machines differ by less

_NAME = re.compile(r"\d{8}T\d{6}Z(?:-\d+)?")


def offsets_margin(marked_ms: int, now_ms: int) -> int:
    """How far above what the backup knows a log goes on."""
    since_s = max(now_ms - marked_ms, 0) // 1000
    return (since_s + WEEK_S) * RECORDS_PER_S


def native_time(marked_ms: int, now_ms: int) -> int:
    """The ids of native streams go on above this time."""
    return max(marked_ms, now_ms) + NATIVE_MS


def backup_name(now_s: float, taken: Iterable[str] = ()) -> str:
    """The name of a backup in a directory of backups; names sort by time."""
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    there = set(taken)
    number, chosen = 1, name
    while chosen in there:
        number += 1
        chosen = f"{name}-{number}"
    return chosen


def is_backup_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def superfluous(names: Iterable[str], keep: int) -> Sequence[str]:
    """The oldest backups beyond the newest `keep`."""
    own = sorted((name for name in names if is_backup_name(name)), key=_order)
    return own[:-keep]


def _order(name: str) -> tuple[str, int]:
    time_text, _, number = name.partition("-")
    return time_text, int(number or 1)
