"""What members say of records they have: whether a request makes sense, and whether it is true.

`refusal` looks at the request alone, `check` at the window too, and `apply` changes it. Ranges of
one type are joined with their neighbours first: members that work record by record send hundreds.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from moldau.broker.errors import ErrorCode
from moldau.broker.share import states
from moldau.broker.share.limits import ShareLimits
from moldau.broker.share.locks import Locks
from moldau.broker.share.window import Window

Batch = tuple[int, int, bytes]
"""First and last offset, and one type for all its records or one for each."""

MIXED = -1
RENEW_ALL = bytes((states.RENEW,))
_KNOWN = bytes(sorted(states.TYPES))
_KNOWN_WITHOUT_RENEW = _KNOWN.replace(RENEW_ALL, b"")
_renewals = re.compile(rb"\x04+|[^\x04]+").finditer


class Segment(NamedTuple):
    """Records that are in transit: they wait for the same write."""

    first: int
    after: int
    lock: int
    """The number of their lock; 0: of several, or of none."""
    type: int
    """What their member said of all of them, or MIXED."""
    limit: int = 0
    """The delivery limit under which they were archived, if they were."""


class Checked(NamedTuple):
    """Positions that a member has, and one type for all or one for each."""

    first: int
    after: int
    types: bytes
    lock: int


def refusal(batches: Sequence[Batch], *, may_renew: bool) -> str | None:
    """Return why acknowledgements make no sense, whatever the records' states; None if they do.

    `may_renew` says whether the request has the flag for RENEW (KIP-1222).
    """
    known = _KNOWN if may_renew else _KNOWN_WITHOUT_RENEW
    end = -1
    for first, last, types in batches:
        if first > last:
            return f"the range {first}-{last} is reversed"
        if first < end:  # by one record only: it is acknowledged already, as in Kafka
            return f"the range {first}-{last} overlaps the one before it"
        if not types:
            return f"the range {first}-{last} has no type of acknowledgement"
        if len(types) > 1 and len(types) != last - first + 1:
            return f"{len(types)} types for the {last - first + 1} records {first}-{last}"
        unknown = types.translate(None, known)
        if unknown:
            if unknown[0] == states.RENEW:
                return "RENEW in a request that is not marked as a renewal"
            return f"{unknown[0]} is no type of acknowledgement"
        end = last
    return None


def check(
    window: Window, locks: Locks, member: str, batches: Sequence[Batch], limits: ShareLimits
) -> list[Checked] | ErrorCode:
    """Return what is acknowledged of the window, or why nothing of it is."""
    checked: list[Checked] = []
    end = -1
    start = window.start
    for first, last, types in _joined(batches):
        if last >= window.end:
            return ErrorCode.INVALID_REQUEST
        if first <= end:
            return ErrorCode.INVALID_RECORD_STATE
        end = last
        if not limits.may_renew and states.RENEW in types:
            return ErrorCode.INVALID_RECORD_STATE
        if first < start:  # over: acknowledged without effect
            if last < start:
                continue
            if len(types) > 1:
                types = types[start - first :]
            first = start
        found = _held(window, locks, member, first, last)
        if found is None:
            return ErrorCode.INVALID_RECORD_STATE
        position, after, lock = found
        if len(types) > 1 and states.RENEW in types:
            for part in _renewals(types):
                begin, stop = position + part.start(), position + part.end()
                kinds = RENEW_ALL if part[0][0] == states.RENEW else part[0]
                checked.append(Checked(begin, stop, kinds, lock))
        else:
            checked.append(Checked(position, after, types, lock))
    return checked


def _joined(batches: Sequence[Batch]) -> Sequence[Batch]:
    """Join neighbours that have the same one type."""
    if len(batches) < 2:
        return batches
    joined: list[Batch] = []
    first, last, types = batches[0]
    for batch in batches[1:]:
        if batch[0] == last + 1 and batch[2] == types and len(types) == 1:
            last = batch[1]
        else:
            joined.append((first, last, types))
            first, last, types = batch
    joined.append((first, last, types))
    return joined


def _held(
    window: Window, locks: Locks, member: str, first: int, last: int
) -> tuple[int, int, int] | None:
    """Return the positions of these offsets and the number of their lock (0: of several), if the
    member has all of them."""
    position = window.position(first)
    if position is None:
        return None
    after = position + last - first + 1
    if window.position(last) != after - 1 or not window.is_acquired(position, after):
        return None
    numbers = window.locks_of(position, after)
    number = numbers[0]
    if numbers == array("I", (number,)) * len(numbers):
        return (position, after, number) if locks.is_of(number, member) else None
    if all(locks.is_of(each, member) for each in set(numbers)):
        return position, after, 0
    return None


def apply(window: Window, checked: Checked, limits: ShareLimits) -> Segment:
    """Put records in transit to what their member said of them; RENEW is not among it."""
    first, after, types, lock = checked
    limit = limits.delivery_count
    kind = types[0]
    if len(types) > 1 and types.count(kind) != len(types):
        window.put(first, after, _mixed(window.of(first, after), types, limit))
        return Segment(first, after, lock, MIXED, limit)
    window.put(first, after, window.of(first, after).translate(_outcome(kind, limit)))
    return Segment(first, after, lock, kind, limit)


def _outcome(kind: int, limit: int) -> bytes:
    if kind == states.ACCEPT:
        return states.ACCEPTED
    if kind == states.RELEASE:
        return states.released(limit)
    return states.REJECTED  # REJECT and GAP: it will not come again


def _mixed(before: bytearray, types: bytes, limit: int) -> bytes:
    """Return the states after a type for each record: each outcome, masked by its type, as one
    integer."""
    whole = 0
    for kind in set(types):
        outcome = int.from_bytes(before.translate(_outcome(kind, limit)), "big")
        whole |= outcome & int.from_bytes(types.translate(states.of_type(kind)), "big")
    return whole.to_bytes(len(types), "big")
