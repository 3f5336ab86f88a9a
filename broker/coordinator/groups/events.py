"""Reports what happens in groups: counters for the metrics, and the topic `__moldau_group_events`.

    key    the group id
    value  a JSON object: event, group, worker, time_ms, and by the event:
           rebalance_started    reason, generation, members
           rebalance_completed  reason (of the start), generation, members, duration_ms
           group_empty          generation, duration_ms if a rebalance ended so
           group_deleted        reason
           member_joined, member_left, member_expired
                                member, instance, client, host, members
           assigned             after a rebalance: generation; owners: a list of member, client,
                                host and topics, by topic the partitions as text such as 0-3,7
           commits              count and seconds since the last one; offsets: by topic, a list of
                                [partition, committed offset]. With `before`, the offsets just
                                before they were moved or removed while the group had no members
           events_dropped       count, of any kind, because the store was slow or unavailable

Events are written off the request path (see EventTopic): a task appends what has gathered, at most
once a second.
"""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from moldau.broker.group.effects import MemberChange, MemberChanged, StateChanged
from moldau.broker.group.states import REBALANCING, GroupState
from moldau.broker.log.logs import Logs
from moldau.broker.log.writing.event_topic import EventTopic
from moldau.broker.metrics.document import Family, Kind, Sample
from moldau.broker.metrics.histogram import DurationHistogram, duration_family
from moldau.broker.topics.topics import GROUP_EVENTS, Topics

if TYPE_CHECKING:
    from moldau.broker.coordinator.groups.coordinator import GroupCoordinator

MAX_GROUPS = 5_000  # with counters of their own
_KINDS = (
    ("expired", "expired"),
    ("did not", "expired"),
    ("joined", "joined"),
    ("left", "left"),
    ("topic", "topics"),
    ("partition", "topics"),
)


class GroupCounters:
    def __init__(self) -> None:
        self._rebalances: dict[tuple[str, str], int] = {}  # by group and reason
        self._durations = DurationHistogram()
        self._started: dict[str, int] = {}
        self._expired = 0

    def changed(self, change: StateChanged | MemberChanged, now_ms: int) -> None:
        if isinstance(change, MemberChanged):
            self._expired += change.change is MemberChange.EXPIRED
            return
        group = change.group_id
        if change.state in REBALANCING:
            if group in self._started:
                return  # it restarts: still the same pause for its members
            self._started[group] = now_ms
            key = group, reason_of(change.reason)
            if key in self._rebalances or len(self._rebalances) < MAX_GROUPS:
                self._rebalances[key] = self._rebalances.get(key, 0) + 1
        elif change.state in (GroupState.STABLE, GroupState.EMPTY, GroupState.DEAD):
            since = self._started.pop(group, None)
            if since is not None and change.state is GroupState.STABLE:
                self._durations.observe((now_ms - since) * 1_000_000)
            if change.state is GroupState.DEAD:
                for key in [each for each in self._rebalances if each[0] == group]:
                    del self._rebalances[key]

    def families(self) -> list[Family]:
        return [
            Family("moldau_consumergroup_rebalances_total", Kind.COUNTER,
                   "Rebalances by what caused them.", ("consumergroup", "reason"),
                   [Sample(key, count) for key, count in self._rebalances.items()]),
            duration_family("moldau_consumergroup_rebalance_duration_seconds",
                            "From the start of a rebalance to the assignments.", (),
                            [self._durations.sample()]),
            Family("moldau_group_heartbeats_expired_total", Kind.COUNTER,
                   "Members removed because they were not heard of.", (),
                   [Sample((), self._expired)]),
        ]  # fmt: skip


def reason_of(text: str) -> str:
    """Reduce a reason to one of a few labels: they must not grow with the names in it."""
    return next((kind for word, kind in _KINDS if word in text), "other")


FLUSH_EVERY_S = 1.0
COMMITS_EVERY_S = 60.0
MAX_OFFSETS = 500  # of one group in one event: of the largest groups only a part
MAX_CHARACTERS = 500  # of strings that clients choose
MAX_OWNERS = 1_000  # members in one event
# A consumer without a group moves its offsets forward again and again: not all of it is noted.
BEFORE_WINDOW_S, BEFORE_PER_WINDOW = 60.0, 5
MAX_REMEMBERED = 10_000  # groups
_CREATED_WITH = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * 86_400_000),
    "retention.bytes": str(64 << 20),
}


class GroupEvents:
    def __init__(
        self,
        coordinator: GroupCoordinator,
        topics: Topics,
        logs: Logs,
        worker: int,
        every_s: float = FLUSH_EVERY_S,
    ) -> None:
        self._coordinator = coordinator
        self._worker = worker
        self._every_s = every_s
        self._topic = EventTopic(GROUP_EVENTS, topics, logs, worker, _CREATED_WITH)
        self._started: dict[str, tuple[int, str]] = {}  # rebalances: start and reason
        self._has_events = asyncio.Event()
        self._commits_since = time.monotonic()
        self._noted_before: dict[str, tuple[float, int]] = {}  # by group: since when, how often

    # --- collecting ---

    def changed(self, change: StateChanged | MemberChanged) -> None:
        if isinstance(change, MemberChanged):
            self._note(
                change.group_id,
                f"member_{change.change}",
                member=_short(change.member_id),
                instance=_short(change.instance_id),
                client=_short(change.client_id),
                host=change.client_host,
                members=change.members,
            )
            return
        group, reason = change.group_id, _short(change.reason)
        facts = {"generation": change.generation_id, "members": change.members}
        now_ms = self._coordinator.now_ms()
        if change.state in REBALANCING:
            # One that restarts before it completed is still the same pause for its members.
            is_known = group in self._started
            self._started.setdefault(group, (now_ms, reason or ""))
            if not is_known or change.state is GroupState.PREPARING_REBALANCE:
                self._note(group, "rebalance_started", reason=reason, **facts)
        elif change.state is GroupState.STABLE or change.state is GroupState.EMPTY:
            since_ms, why = self._started.pop(group, (now_ms, ""))
            is_empty = change.state is GroupState.EMPTY
            name = "group_empty" if is_empty else "rebalance_completed"
            self._note(group, name, reason=why, duration_ms=now_ms - since_ms, **facts)
            if not is_empty:
                self._note_owners(group, change.generation_id)
        elif change.state is GroupState.DEAD:
            self._started.pop(group, None)
            if reason == "deleted":
                self._note(group, "group_deleted", reason=reason)

    def _note_owners(self, group: str, generation: int) -> None:
        owners = []
        known = self._coordinator.groups.by_id.get(group)
        for member in known.owners()[:MAX_OWNERS] if known is not None else ():
            partitions: dict[str, list[int]] = {}
            for topic, partition in member.partitions:
                partitions.setdefault(topic, []).append(partition)
            owners.append(
                {
                    "member": _short(member.member_id),
                    "client": _short(member.client_id),
                    "host": member.client_host,
                    "topics": {topic: as_ranges(each) for topic, each in partitions.items()},
                }
            )
        self._note(group, "assigned", generation=generation, owners=owners)

    def _note(self, group: str, event: str, **facts: Any) -> None:
        now_ms = self._coordinator.now_ms()
        document = {"event": event, "group": group, "worker": self._worker, "time_ms": now_ms}
        given = {name: fact for name, fact in facts.items() if fact is not None}
        if self._topic.put(group, document | given, now_ms):
            self._has_events.set()

    def note_commits(self) -> None:
        """Queue the number of commits of each group since the last call, and its offsets."""
        now = time.monotonic()
        seconds, self._commits_since = now - self._commits_since, now
        counted = self._coordinator.offsets
        counts, counted.commit_counts = counted.commit_counts or {}, {}
        for group, count in counts.items():
            offsets = self._offsets(group)
            self._note(group, "commits", count=count, seconds=round(seconds, 1), offsets=offsets)

    def note_offsets_before(self, group: str, back: bool) -> None:
        """Note offsets that are about to be moved or removed, so that they can be restored."""
        now = time.monotonic()
        since, count = self._noted_before.get(group, (now, 0))
        if now - since >= BEFORE_WINDOW_S:
            since, count = now, 0
        if count >= BEFORE_PER_WINDOW and not back:
            return
        if len(self._noted_before) >= MAX_REMEMBERED:
            self._noted_before.clear()
        self._noted_before[group] = since, count + 1
        if offsets := self._offsets(group):
            self._note(group, "commits", before=True, offsets=offsets)

    def _offsets(self, group: str) -> dict[str, list[tuple[int, int]]]:
        offsets: dict[str, list[tuple[int, int]]] = {}
        committed_offsets = self._coordinator.groups.offsets.get(group)
        for (topic, partition), committed in islice(committed_offsets or (), MAX_OFFSETS):
            offsets.setdefault(topic, []).append((partition, committed.offset))
        return offsets

    # --- writing ---

    async def run(self) -> None:
        while True:
            await self._wait()
            if time.monotonic() - self._commits_since >= COMMITS_EVERY_S:
                self.note_commits()
            if self._topic.queue:
                await self.flush()
                await asyncio.sleep(self._every_s)

    async def _wait(self) -> None:
        self._has_events.clear()
        if self._topic.queue:
            return
        until_commits = self._commits_since + COMMITS_EVERY_S - time.monotonic()
        try:
            async with asyncio.timeout(max(until_commits, 0.0)):
                await self._has_events.wait()
        except TimeoutError:
            pass

    async def flush(self) -> None:
        """Append the queued events, once. Those that cannot be written stay queued."""
        await self._topic.flush(self._coordinator.now_ms())

    async def close(self, seconds: float) -> None:
        """Write the last events when the worker stops."""
        await self._topic.close(seconds, self._coordinator.now_ms())


def as_ranges(partitions: list[int]) -> str:
    """Numbers as text, such as 0-3,7."""
    found: list[tuple[int, int]] = []
    for number in sorted(partitions):
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


def _short(text: str | None) -> str | None:
    return None if text is None else text[:MAX_CHARACTERS]
