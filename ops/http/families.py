"""Turns a snapshot into families of metrics. Pure.

Series of a process keep its label: its counters begin at 0 when it is restarted, so a sum over
processes would go backwards. PromQL adds them up. Topics and groups have the names that
kafka_exporter gives them, for the dashboards and alerts that know those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from moldau.broker.log.keeping.archived import ARCHIVE_GROUP
from moldau.broker.metrics.document import (
    Family,
    HistogramSample,
    Kind,
    PartitionRow,
    Sample,
)
from moldau.ops.http.clients import client_families
from moldau.ops.http.lag import Lags
from moldau.ops.http.snapshot import Snapshot, Status, Usage

# Series of single partitions are left out beyond this many; the sums stay.
MAX_PARTITION_SERIES = 10_000
# Sums of groups and topics: those that are furthest behind stay.
MAX_SUM_SERIES = 50_000
_BY_PROCESS = ("role", "index")
_BY_PARTITION = ("topic", "partition")
_BY_COMMITTED = ("consumergroup", "topic", "partition")


def families(
    snapshot: Snapshot, usages: Mapping[tuple[str, int], Usage], build: tuple[str, str]
) -> list[Family]:
    """`build`: the versions of Moldau and of Python."""
    store = str((snapshot.status.store if snapshot.status else {}).get("kind", ""))
    found = [
        gauge("moldau_build_info", "Versions; always 1.", ("version", "python", "store"),
              [Sample((*build, store), 1)]),
        *_process_families(snapshot, usages),
        *_disk_families(snapshot.status),
    ]  # fmt: skip
    for role, documents in (("worker", snapshot.workers), ("router", snapshot.routers)):
        for index, document in enumerate(documents):
            if document is not None:
                found += [_labelled(family, role, index) for family in document.families]
    lags = Lags(snapshot)
    found += _topic_families(lags.partitions, len(snapshot.workers))
    return found + _group_families(lags) + client_families(snapshot)


def gauge(name: str, text: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> Family:
    return Family(name, Kind.GAUGE, text, labels, list(samples))


def counter(name: str, text: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> Family:
    return Family(name, Kind.COUNTER, text, labels, list(samples))


def _labelled(family: Family, role: str, index: int) -> Family:
    """The family with the label of the process that reported it."""
    by_role = family.by_role
    values = (role, str(index)) if by_role else (str(index),)
    return msgspec.structs.replace(
        family,
        labels=(*family.labels, *(_BY_PROCESS if by_role else (role,))),
        samples=[Sample((*each.labels, *values), each.value) for each in family.samples],
        histograms=[
            HistogramSample((*each.labels, *values), each.counts, each.total)
            for each in family.histograms
        ],
    )


# --- processes ---


def _process_families(snapshot: Snapshot, usages: Mapping[tuple[str, int], Usage]) -> list[Family]:
    up = [
        Sample((role, str(index)), float(document is not None))
        for role, documents in (("worker", snapshot.workers), ("router", snapshot.routers))
        for index, document in enumerate(documents)
    ]
    up.append(Sample(("supervisor", "0"), float(snapshot.status is not None)))
    status = snapshot.status or Status([], {})
    restarts = [
        Sample((each.role, str(each.index)), each.restarts)
        for each in status.processes
        if each.role != "supervisor"
    ]
    used = [((role, str(index)), usage) for (role, index), usage in usages.items()]
    return [
        gauge("moldau_up", "Whether a process answers.", _BY_PROCESS, up),
        counter("moldau_process_restarts_total", "Restarts by the supervisor.", _BY_PROCESS,
                restarts),
        counter("moldau_process_cpu_seconds_total", "CPU time used.", _BY_PROCESS,
                [Sample(labels, usage.cpu_seconds) for labels, usage in used]),
        gauge("moldau_process_resident_memory_bytes", "Resident memory.", _BY_PROCESS,
              [Sample(labels, usage.resident_bytes) for labels, usage in used]),
        gauge("moldau_process_open_fds", "Open file descriptors.", _BY_PROCESS,
              [Sample(labels, usage.open_fds) for labels, usage in used]),
    ]  # fmt: skip


def _disk_families(status: Status | None) -> list[Family]:
    """The disk of the embedded store, as the supervisor sees it."""
    disk = status.store.get("disk") if status is not None else None
    if not disk:
        return []
    named = [
        ("moldau_store_disk_free_bytes", "free_bytes", "Free space on the store's disk."),
        ("moldau_store_disk_bytes", "total_bytes", "The size of the store's disk."),
        ("moldau_store_disk_min_free_bytes", "min_free_bytes",
         "Free space below which producers are refused."),
        ("moldau_store_disk_refuses_writes", "refuses_writes",
         "1: producers are refused, because the store's disk is nearly full."),
    ]  # fmt: skip
    return [
        gauge(name, text, (), [Sample((), float(disk.get(fact, 0)))]) for name, fact, text in named
    ]


# --- topics ---


def _topic_families(partitions: list[PartitionRow], brokers: int) -> list[Family]:
    counts: dict[str, int] = {}
    for row in partitions:
        counts[row.topic] = counts.get(row.topic, 0) + 1
    shown = partitions if len(partitions) <= MAX_PARTITION_SERIES else []
    labelled = [((row.topic, str(row.partition)), row) for row in shown]
    return [
        gauge("kafka_brokers", "Brokers: one for each worker.", (), [Sample((), brokers)]),
        gauge("kafka_topic_partitions", "Partitions of a topic.", ("topic",),
              [Sample((topic,), count) for topic, count in counts.items()]),
        gauge("kafka_topic_partition_current_offset", "The offset after the last record.",
              _BY_PARTITION, [Sample(labels, row.end) for labels, row in labelled]),
        gauge("kafka_topic_partition_oldest_offset", "The offset of the first record.",
              _BY_PARTITION, [Sample(labels, row.start) for labels, row in labelled]),
        gauge("kafka_topic_partition_leader", "The broker that leads it.",
              _BY_PARTITION, [Sample(labels, row.leader) for labels, row in labelled]),
        gauge("moldau_topic_partition_size_bytes", "Bytes of its batches.",
              _BY_PARTITION, [Sample(labels, row.size) for labels, row in labelled]),
    ]  # fmt: skip


# --- groups ---


def _group_families(lags_of: Lags) -> list[Family]:
    current: list[Sample] = []
    lags: list[Sample] = []
    sums: dict[tuple[str, str], int] = {}
    ages: dict[tuple[str, str], float] = {}
    unknown: set[tuple[str, str]] = set()  # without a part of it, a sum would be wrong
    groups = lags_of.groups
    has_partitions = sum(len(group.committed) for group in groups) <= MAX_PARTITION_SERIES
    for group in groups:
        for each in lags_of.of(group):
            whole = (group.group, each.topic)
            if has_partitions:
                labels = (*whole, str(each.partition))
                current.append(Sample(labels, each.offset))
                if each.records is not None:
                    lags.append(Sample(labels, each.records))
            if each.seconds is not None:
                ages[whole] = max(ages.get(whole, 0.0), each.seconds)
            if each.records is None:
                unknown.add(whole)
            else:
                sums[whole] = sums.get(whole, 0) + each.records
    sums = {whole: lag for whole, lag in sums.items() if whole not in unknown}
    by_group = ("consumergroup",)
    return [
        gauge("kafka_consumergroup_members", "Members of a group.", by_group,
              [Sample((group.group,), group.members) for group in groups]),
        gauge("moldau_consumergroup_state", "1 for the state a group is in.",
              ("consumergroup", "state"),
              [Sample((group.group, group.state), 1) for group in groups]),
        gauge("kafka_consumergroup_current_offset", "The committed offset.", _BY_COMMITTED,
              current),
        gauge("kafka_consumergroup_lag", "Records behind the end of the partition.",
              _BY_COMMITTED, lags),
        gauge("kafka_consumergroup_lag_sum", "The same, over the partitions of a topic.",
              ("consumergroup", "topic"),
              _largest(sums)),
        gauge("moldau_archive_lag_records", "Records that the archiver has not copied yet.",
              ("topic",),
              [Sample((topic,), lag) for (group, topic), lag in sums.items()
               if group == ARCHIVE_GROUP]),
        gauge("moldau_consumergroup_lag_seconds",
              "Age of the first record that is not committed, of the worst partition.",
              ("consumergroup", "topic"),
              _largest(ages)),
    ]  # fmt: skip


def _largest(values: Mapping[tuple[str, str], float]) -> list[Sample]:
    shown = list(values.items())
    if len(shown) > MAX_SUM_SERIES:
        shown.sort(key=lambda each: (-each[1], each[0]))
        del shown[MAX_SUM_SERIES:]
    return [Sample(labels, value) for labels, value in shown]
