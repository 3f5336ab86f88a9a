"""How many records of a native stream are behind an offset: what a group's lag is.

Offsets are times, so they do not tell, and Redis cannot count entries between two ids. It does
know how many entries a stream has, and how many a consumer group has not been given yet; from one
of these places the entries up to the offset are counted, if they are not too many. Beyond that the
number is unknown, which is better than a wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence

from moldau.broker.log.counting import CountBudget
from moldau.broker.log.native.view import NativeView
from moldau.broker.private.table import UNKNOWN, Counts
from moldau.broker.store.native import NativeStreams, StreamGroup
from moldau.broker.store.stream_ids import Id, parse

MAX_COUNTED = 10_000
# Entries may be large, and the store holds as many of them twice while it counts them.
MAX_STEP, STEP_BYTES = 100, 1 << 20
UNIT = 1024  # bytes of an entry that count as one record of the budget


async def count_from(
    native: NativeStreams,
    view: NativeView,
    wanted: Sequence[tuple[str, int]],
    budget: CountBudget,
) -> Counts:
    """Count the records from each offset on; `wanted`: groups and the offsets they committed."""
    await view.current()
    bounds = await view.read_bounds()
    if not bounds.length:
        return [0] * len(wanted)
    groups = {group.name: group for group in await native.groups_of(view.key)}
    size = await native.memory(view.key) // bounds.length
    counting = _Counting(native, view, bounds.length, parse(bounds.first), size, budget)
    return [await counting.count(groups.get(group), offset) for group, offset in wanted]


class _Counting:
    def __init__(
        self,
        native: NativeStreams,
        view: NativeView,
        length: int,
        first: Id,
        size: int,
        budget: CountBudget,
    ) -> None:
        """`size`: bytes of an entry, on average."""
        self._native = native
        self._view = view
        self._length = length
        self._first = first
        self._step = max(min(MAX_STEP, STEP_BYTES // max(size, 1)), 1)
        self._cost = 1 + size // UNIT
        self._budget = budget

    async def count(self, group: StreamGroup | None, offset: int) -> int | None:
        numbering = self._view.numbering
        if offset >= self._view.end:
            return 0
        if offset <= numbering.offset_from(self._first):
            return self._length
        wanted = numbering.start_at(offset).first
        known = None if group is None else self._known_by_redis(group)
        if known is not None:
            counted = await self._from(known, wanted)
            if counted != UNKNOWN:
                return counted
        # From the end of the stream or its start, whichever seems to be nearer.
        places = [(self._view.last_id.after, 0), (self._first, self._length)]
        if wanted.ms - self._first.ms < self._view.last_id.ms - wanted.ms:
            places.reverse()
        counted = await self._from(places[0], wanted)
        if counted != UNKNOWN:
            return counted
        # Too far from one of them: the rest of the budget decides whether to try the other.
        counted = await self._from(places[1], wanted)
        return UNKNOWN if counted is None else counted

    async def _from(self, known: tuple[Id, int], wanted: Id) -> int | None:
        """Count from where it is known how many entries follow."""
        position, behind = known
        if position == wanted:
            return behind
        is_ahead = position > wanted
        lower, upper = (wanted, position) if is_ahead else (position, wanted)
        between = await self._between(lower, upper.before)
        if between is None or between == UNKNOWN:
            return between
        return behind + between if is_ahead else behind - between

    def _known_by_redis(self, group: StreamGroup) -> tuple[Id, int] | None:
        """The first id that a group was not given yet, and how many entries there are from it."""
        position = parse(group.last_delivered).after
        if position <= self._first:
            return position, self._length
        if group.lag is None or group.lag > self._length:
            return None
        return position, group.lag

    async def _between(self, first: Id, last: Id) -> int | None:
        """How many entries; UNKNOWN beyond MAX_COUNTED; None when there was no time for it."""
        at, counted = bytes(first), 0
        while at:
            if counted > MAX_COUNTED:
                return UNKNOWN
            if self._budget.is_used_up:
                # Unless others have used it, there is no point in trying again.
                return UNKNOWN if counted * self._cost > self._budget.total // 2 else None
            at, more = await self._native.count_range(self._view.key, at, bytes(last), self._step)
            self._budget.use(more * self._cost)
            counted += more
        return counted if counted <= MAX_COUNTED else UNKNOWN
