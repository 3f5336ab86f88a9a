"""A record of a window is one byte: three bits of state above five bits of delivery count.

The states are ranges of byte values, so every change of many records is one `translate`, and every
question about them one `translate` that deletes, or one expression. Nothing here knows offsets.

    available    may be acquired
    acquired     with the member of its lock
    acknowledged, archived      finished, and stored (or known from the log itself)
    accepting, archiving, releasing      acknowledged; the write that says so is under way
"""

from __future__ import annotations

import re
from functools import cache

AVAILABLE = 0x00
ACQUIRED = 0x20
ACKNOWLEDGED = 0x40
ARCHIVED = 0x60
ACCEPTING = 0x80
ARCHIVING = 0xA0
RELEASING = 0xC0
RESERVED = 0xE0  # for dead letter queues: a record that is being copied

STATE = 0xE0
COUNT = 0x1F
MAX_COUNT = COUNT

NAMES = {
    AVAILABLE: "available",
    ACQUIRED: "acquired",
    ACKNOWLEDGED: "acknowledged",
    ARCHIVED: "archived",
    ACCEPTING: "accepting",
    ARCHIVING: "archiving",
    RELEASING: "releasing",
}

# Types of acknowledgements, as on the wire.
GAP = 0
ACCEPT = 1
RELEASE = 2
REJECT = 3
RENEW = 4
TYPES = frozenset((GAP, ACCEPT, RELEASE, REJECT, RENEW))


def _all(state: int) -> bytes:
    return bytes(range(state, state + COUNT + 1))


def _table(changes: dict[int, int], *, keeps_count: bool = True) -> bytes:
    """Return a table for `translate`: state to state, all others unchanged."""
    table = bytearray(range(256))
    for before, after in changes.items():
        for count in range(COUNT + 1):
            table[before | count] = after | count if keeps_count else after
    return bytes(table)


ALL_ACQUIRED = _all(ACQUIRED)
ALL_ARCHIVING = _all(ARCHIVING)
FINISHED = bytes((ACKNOWLEDGED, ARCHIVED))  # without a count
IN_TRANSIT = _all(ACCEPTING) + _all(ARCHIVING) + _all(RELEASING)
HELD = ALL_ACQUIRED + IN_TRANSIT

ACCEPTED = _table({ACQUIRED: ACCEPTING})
REJECTED = _table({ACQUIRED: ARCHIVING})
# What a write makes of what is in transit.
_FINAL = bytearray(_table({ACCEPTING: ACKNOWLEDGED, ARCHIVING: ARCHIVED}, keeps_count=False))
_FINAL[RELEASING : RELEASING + COUNT + 1] = _all(AVAILABLE)
FINAL = bytes(_FINAL)
# What a failed write makes of it, while the lock is there.
BACK = _table({ACCEPTING: ACQUIRED, ARCHIVING: ACQUIRED, RELEASING: ACQUIRED})
# Records that are not in the log: available ones are over.
AT_LIMIT = _table({AVAILABLE: ARCHIVING})
ABSENT = _table({AVAILABLE: ARCHIVED}, keeps_count=False)
# What is stored: the death of a worker must not use up an attempt, so an acquired record has the
# count from before its delivery. Finished ones have none.
_STORED = bytearray(FINAL)
for _count in range(COUNT + 1):
    _STORED[ACQUIRED | _count] = AVAILABLE | max(_count - 1, 0)
    _STORED[ACKNOWLEDGED | _count] = ACKNOWLEDGED
    _STORED[ARCHIVED | _count] = ARCHIVED
STORED = bytes(_STORED)

find_available = re.compile(rb"[\x00-\x1f]").search
archiving_runs = re.compile(rb"[\xa0-\xbf]+").finditer


@cache
def released(limit: int) -> bytes:
    """Return the table for a release: at the limit of deliveries a record is archived."""
    return _unless_at_limit(RELEASING, limit)


@cache
def expired(limit: int) -> bytes:
    """Return the table for the end of a lock: available, or archiving at the limit."""
    return _unless_at_limit(AVAILABLE, limit)


def _unless_at_limit(after: int, limit: int) -> bytes:
    table = bytearray(range(256))
    for count in range(COUNT + 1):
        table[ACQUIRED | count] = (after if count < limit else ARCHIVING) | count
    return bytes(table)


@cache
def of_type(wanted: int) -> bytes:
    """Return the table that masks the records with this type of acknowledgement."""
    return bytes(0xFF if each == wanted else 0 for each in range(256))
