"""Colours of a group's members: the same in the film and in lists, and apart from each other.

There are twelve. A member has the one that follows from its id, unless others that are shown with
it have that one already: then the next that the fewest of them have. Remembered while the process
runs, within bounds. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from moldau.ops.client.partitioning import murmur2

HUES = 12
MAX_GROUPS, MAX_MEMBERS = 1_000, 500


class Hues:
    def __init__(self) -> None:
        self._by_group: dict[str, dict[str, int]] = {}  # those used last come last

    def of(self, group: str, members: Iterable[str]) -> Mapping[str, int]:
        """A hue for each of them, from 0 to HUES - 1."""
        known = self._by_group.pop(group, {})
        wanted = list(dict.fromkeys(members))
        used = Counter(known[member] for member in wanted if member in known)
        for member in wanted:
            if member not in known:
                first = murmur2(member.encode()) % 360 * HUES // 360
                known[member] = min(
                    ((first + step) % HUES for step in range(HUES)), key=lambda hue: used[hue]
                )
                used[known[member]] += 1
        found = {member: known[member] for member in wanted}
        while len(known) > MAX_MEMBERS:
            del known[next(iter(known))]
        self._by_group[group] = known
        if len(self._by_group) > MAX_GROUPS:
            del self._by_group[next(iter(self._by_group))]
        return found
