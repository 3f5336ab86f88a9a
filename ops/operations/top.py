"""Computes what `moldau top` shows from two samples of a running broker. Pure.

Rates are differences of counters. A counter that is new, or went back because its process was
restarted, has no rate until the next sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from moldau.broker.metrics.document import Document, Family
from moldau.ops.http import health
from moldau.ops.http.lag import Lags
from moldau.ops.http.snapshot import Snapshot, Usage

REQUESTS = "moldau_kafka_requests_total"
RECORDS_IN = "moldau_topic_records_in_total"
BYTES_IN = "moldau_topic_bytes_in_total"
BYTES_OUT = "moldau_topic_bytes_out_total"
LOOP_LAG = "moldau_event_loop_lag_seconds"
CONNECTIONS = "moldau_connections"
STORE_MEMORY = "moldau_store_memory_bytes"
STORE_LIMIT = "moldau_store_memory_limit_bytes"

Key = tuple[str, int]  # role and index


class Sampled(NamedTuple):
    at: float  # seconds of a clock that never goes back
    snapshot: Snapshot
    usages: dict[Key, Usage]


def overview(before: Sampled, after: Sampled) -> dict[str, Any]:
    seconds = max(after.at - before.at, 1e-3)
    rates = _Rates(before.snapshot, after.snapshot, seconds)
    lags = Lags(after.snapshot)
    memory, limit = store_memory(after.snapshot)
    return {
        "interval_s": round(seconds, 3),
        "problems": health.problems(after.snapshot),
        "requests_per_s": rates.total(REQUESTS),
        "records_in_per_s": rates.total(RECORDS_IN),
        "bytes_in_per_s": rates.total(BYTES_IN),
        "bytes_out_per_s": rates.total(BYTES_OUT),
        "store": {
            "memory_bytes": memory,
            "memory_limit_bytes": limit,
        },
        "processes": _processes(before, after, rates, seconds),
        "topics": _topics(rates, lags),
        "groups": _groups(lags),
    }


def process_figures(before: Sampled, after: Sampled) -> dict[Key, dict[str, Any]]:
    """The `processes` of the overview, by role and index."""
    seconds = max(after.at - before.at, 1e-3)
    rates = _Rates(before.snapshot, after.snapshot, seconds)
    found = _processes(before, after, rates, seconds)
    return {(each["role"], each["index"]): each for each in found}


def store_memory(snapshot: Snapshot) -> tuple[int | None, int | None]:
    """Memory that the store uses, and its limit (0: none)."""
    documents = dict(_documents(snapshot))
    return _gauge(documents, STORE_MEMORY), _gauge(documents, STORE_LIMIT)


def _processes(
    before: Sampled, after: Sampled, rates: _Rates, seconds: float
) -> list[dict[str, Any]]:
    status = after.snapshot.status
    pids = _pids(before.snapshot)
    documents = dict(_documents(after.snapshot))
    found = []
    for each in status.processes if status is not None else ():
        key = (each.role, each.index)
        usage, earlier = after.usages.get(key), before.usages.get(key)
        cpu = None
        if usage is not None and earlier is not None and pids.get(key) == each.pid:
            cpu = round(100 * (usage.cpu_seconds - earlier.cpu_seconds) / seconds, 1)
        document = documents.get(key)
        mean, most = rates.loop_lag(key)
        found.append(
            {
                "role": each.role,
                "index": each.index,
                "pid": each.pid,
                "state": each.state,
                "uptime_s": each.uptime_s,
                "restarts": each.restarts,
                "cpu_percent": cpu,
                "memory_bytes": None if usage is None else usage.resident_bytes,
                "connections": None if document is None else _sum(document, CONNECTIONS),
                "requests_per_s": rates.of_worker(REQUESTS, key),
                "loop_lag_mean_s": mean,
                "loop_lag_max_s": most,
            }
        )
    return found


def _topics(rates: _Rates, lags: Lags) -> list[dict[str, Any]]:
    """The busiest first."""
    found: dict[str, dict[str, Any]] = {}
    for row in lags.partitions:
        topic = found.setdefault(row.topic, {"topic": row.topic, "partitions": 0, "size_bytes": 0})
        topic["partitions"] += 1
        topic["size_bytes"] += row.size
    by_topic = {name: rates.by_label(name) for name in (RECORDS_IN, BYTES_IN, BYTES_OUT)}
    for name, topic in found.items():
        topic["records_in_per_s"] = by_topic[RECORDS_IN].get(name, 0.0)
        topic["bytes_in_per_s"] = by_topic[BYTES_IN].get(name, 0.0)
        topic["bytes_out_per_s"] = by_topic[BYTES_OUT].get(name, 0.0)
    return sorted(
        found.values(),
        key=lambda each: (-each["bytes_in_per_s"] - each["bytes_out_per_s"], each["topic"]),
    )


def _groups(lags: Lags) -> list[dict[str, Any]]:
    """Sorted by lag, the largest first."""
    found = [
        {
            "group": group.group,
            "state": group.state,
            "members": group.members,
            "lag": lags.records(group),
        }
        for group in lags.groups
    ]
    return sorted(found, key=lambda each: (each["lag"] is None, -(each["lag"] or 0), each["group"]))


# --- counters and their rates ---


class _Rates:
    def __init__(self, before: Snapshot, after: Snapshot, seconds: float) -> None:
        self._before = dict(_documents(before))
        self._after = dict(_documents(after))
        self._seconds = seconds

    def total(self, name: str) -> float:
        return round(sum(rate for _, _, rate in self._series(name)), 1)

    def of_worker(self, name: str, key: Key) -> float | None:
        if key[0] != "worker" or key not in self._after or key not in self._before:
            return None
        return round(sum(rate for at, _, rate in self._series(name) if at == key), 1)

    def by_label(self, name: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for _, label, rate in self._series(name):
            found[label] = found.get(label, 0.0) + rate
        return {label: round(rate, 1) for label, rate in found.items()}

    def _series(self, name: str) -> Iterator[tuple[Key, str, float]]:
        """Process, first label and rate of each series that is in both samples."""
        for key, document in self._after.items():
            if key not in self._before:
                continue
            earlier = {
                each.labels: each.value
                for family in _families(self._before[key], name)
                for each in family.samples
            }
            for family in _families(document, name):
                for each in family.samples:
                    increase = each.value - earlier.get(each.labels, each.value)
                    yield key, "".join(each.labels[:1]), max(increase, 0) / self._seconds

    def loop_lag(self, key: Key) -> tuple[float | None, float | None]:
        """How late timers were between the samples: on average, and at most (a bucket's bound)."""
        if key not in self._before or key not in self._after:
            return None, None
        for now in _families(self._after[key], LOOP_LAG):
            for then in _families(self._before[key], LOOP_LAG):
                new, old = now.histograms[0], then.histograms[0]
                counts = [n - o for n, o in zip(new.counts, old.counts, strict=True)]
                count = sum(counts)
                if count <= 0 or min(counts) < 0:
                    return None, None
                last = max(at for at, each in enumerate(counts) if each)
                bound = now.bounds[min(last, len(now.bounds) - 1)]
                mean = (new.total - old.total) / count
                return round(mean, 6), round(max(bound, mean), 6)
        return None, None


def _documents(snapshot: Snapshot) -> Iterator[tuple[Key, Document]]:
    for role, documents in (("worker", snapshot.workers), ("router", snapshot.routers)):
        for index, document in enumerate(documents):
            if document is not None:
                yield (role, index), document


def _families(document: Document, name: str) -> Iterator[Family]:
    return (family for family in document.families if family.name == name)


def _pids(snapshot: Snapshot) -> dict[Key, int | None]:
    status = snapshot.status
    return {(each.role, each.index): each.pid for each in (status.processes if status else ())}


def _sum(document: Document, name: str) -> int:
    return int(sum(s.value for family in _families(document, name) for s in family.samples))


def _gauge(documents: dict[Key, Document], name: str) -> int | None:
    for document in documents.values():
        for family in _families(document, name):
            for sample in family.samples:
                return int(sample.value)
    return None
