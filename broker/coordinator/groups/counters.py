"""Counts rebalances and expired members of a worker's groups, for the metrics."""

from __future__ import annotations

from moldau.broker.group.effects import MemberChange, MemberChanged, StateChanged
from moldau.broker.group.states import REBALANCING, GroupState
from moldau.broker.metrics.document import Family, Kind, Sample
from moldau.broker.metrics.histogram import DurationHistogram, duration_family

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
