"""How far groups are behind: joins the reports of coordinators and of the leaders of partitions.

/metrics, `moldau top` and the console's lists all count lag here. In records: the offsets from the
committed one to the end of the partition, without the gaps that a lost tail leaves; in native
topics, where offsets do not count records, the number that the leader has counted. In seconds: the
age of the first record that is not committed, 0 if there is none. Its timestamp is that of the
batch which holds it, so it may be older by the time a batch was collected (linger.ms), and it is as
true as the clocks of producers, unless the topic has LogAppendTime.

Leaders are asked for timestamps and counts. An answer is kept while it stays true, so a group that
stands still costs nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from moldau.broker.metrics.document import GroupRow, PartitionRow
from moldau.broker.private.table import UNKNOWN, Behind, RecordOffset
from moldau.ops.http.snapshot import Snapshot

MAX_KEPT = 100_000

Key = TypeVar("Key", bound=Hashable)


class Lag(msgspec.Struct, frozen=True, gc=False):
    """The lag of a group in one partition that it has committed an offset of."""

    topic: str
    partition: int
    offset: int  # the committed one
    # None: the leader of the partition has not reported it, or could not count them.
    records: int | None
    seconds: float | None  # None: its leader has not said when the record was made


class Lags:
    def __init__(self, snapshot: Snapshot) -> None:
        documents = [document for document in snapshot.workers if document is not None]
        self.partitions = [row for each in documents for row in each.partitions]
        self.groups = [row for each in documents for row in each.groups]
        self._rows: dict[tuple[str, int], PartitionRow] = {
            (row.topic, row.partition): row for row in self.partitions
        }
        self._times = snapshot.times
        self._counts = snapshot.counts
        self.uncounted = {  # topics whose offsets do not count records
            row.topic for row in self.partitions if not row.has_consecutive_offsets
        }
        self._clock_ms = snapshot.clock_ms

    def of(self, group: GroupRow) -> Iterator[Lag]:
        rows = self._rows
        for committed in group.committed:
            topic, partition, offset = committed.topic, committed.partition, committed.offset
            row = rows.get((topic, partition))
            records = None if row is None else self._behind(group.group, offset, row)
            seconds = 0.0 if records == 0 else None
            if records != 0 and row is not None:
                made_ms = self._times.get((topic, partition, max(offset, row.start)), -1)
                seconds = max(self._clock_ms - made_ms, 0) / 1000 if made_ms >= 0 else None
            yield Lag(topic, partition, offset, records, seconds)

    def _behind(self, group: str, offset: int, row: PartitionRow) -> int | None:
        # Records that retention removed are not behind: they are not there.
        if offset >= row.end:
            return 0
        if row.has_consecutive_offsets:
            return row.count(max(offset, row.start), row.end)
        counted = self._counts.get((row.topic, row.partition, group, offset), UNKNOWN)
        return None if counted == UNKNOWN else counted

    def records(self, group: GroupRow) -> int | None:
        """The sum over all its partitions; None if one is unknown."""
        found = [each.records for each in self.of(group)]
        return None if None in found else sum(each or 0 for each in found)

    def seconds(self, group: GroupRow) -> float | None:
        """The age in the worst partition; None if it is known for none."""
        return worst(each.seconds for each in self.of(group))

    def to_time(self) -> Iterator[tuple[int, RecordOffset, None]]:
        """The first record of each partition that a group has not committed, with its leader.
        A record's timestamp never changes."""
        rows = self._rows
        for group in self.groups:
            for each in group.committed:
                row = rows.get((each.topic, each.partition))
                if row is not None and each.offset < row.end and row.start < row.end:
                    place = (each.topic, each.partition, max(each.offset, row.start))
                    yield row.leader, place, None

    def to_count(self) -> Iterator[tuple[int, Behind, tuple[int, int]]]:
        """Where the leader has to count. A count is true while neither end nor size changes."""
        if not self.uncounted:
            return
        for group in self.groups:
            for each in group.committed:
                if each.topic in self.uncounted:
                    row = self._rows.get((each.topic, each.partition))
                    if row is not None and each.offset < row.end:
                        behind = (each.topic, each.partition, group.group, each.offset)
                        yield row.leader, behind, (row.end, row.records)


def worst(ages: Iterable[float | None]) -> float | None:
    return max((age for age in ages if age is not None), default=None)


class LagCache(Generic[Key]):
    """Answers of leaders: timestamps, or counts. A question is bounded; its starting point rotates
    so that every entry gets its turn."""

    def __init__(self, max_asked: int) -> None:
        """`max_asked`: the most keys in one question to a leader."""
        self.answers: dict[Key, int] = {}
        self._states: dict[Key, object] = {}
        self._max_asked = max_asked
        self._turn = 0

    def missing(self, wanted: Iterable[tuple[int, Key, object]]) -> dict[int, list[Key]]:
        """The keys to ask each leader for; drops answers that are stale or no longer wanted.

        `wanted`: leader, key, and the state in which an answer is true.
        """
        kept: dict[Key, int] = {}
        states: dict[Key, object] = {}
        missing: dict[int, dict[Key, None]] = {}
        for leader, key, state in wanted:
            states[key] = state
            if key not in self.answers or self._states[key] != state:
                missing.setdefault(leader, {})[key] = None
            elif len(kept) < MAX_KEPT:
                kept[key] = self.answers[key]
        self.answers, self._states = kept, states
        self._turn += 1
        return {leader: self._some(list(keys)) for leader, keys in missing.items()}

    def _some(self, keys: list[Key]) -> list[Key]:
        most = self._max_asked
        first = self._turn * (most if len(keys) > most else 1) % len(keys)
        return (keys[first:] + keys[:first])[:most]

    def add(self, asked: Sequence[Key], answers: Sequence[int | None]) -> None:
        """None: the leader had no time for it, and is asked again."""
        for key, answer in zip(asked, answers, strict=False):
            if answer is not None:
                self.answers[key] = answer
