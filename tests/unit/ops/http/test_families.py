"""Reports of processes become metrics, and health."""

from __future__ import annotations

import pytest

from moldau.broker.metrics.document import (
    CommittedRow,
    Document,
    Family,
    GroupRow,
    Kind,
    PartitionRow,
    Sample,
)
from moldau.broker.private.api import answer_body
from moldau.broker.private.table import METRICS
from moldau.ops.http import families as http_families
from moldau.ops.http import health
from moldau.ops.http.families import families
from moldau.ops.http.snapshot import Process, Snapshot, Status, Usage

STATUS = Status([Process("worker", 0, 11, 9093, 5.0, 2, "running")], {"kind": "embedded"})


def worker(**facts: object) -> Document:
    document = Document(**facts)  # type: ignore[arg-type]
    return METRICS.read_answer(answer_body(METRICS.answer(document)))


def found(snapshot: Snapshot, name: str) -> dict[tuple[str, ...], float]:
    usages = {("worker", 0): Usage(1.5, 1000, 7)}
    every = families(snapshot, usages, ("1.0", "3.11"))
    return {s.labels: s.value for each in every if each.name == name for s in each.samples}


def test_lag_joins_what_owners_of_groups_and_leaders_of_partitions_know() -> None:
    owner = worker(
        groups=[
            GroupRow(
                "billing",
                "Stable",
                2,
                [
                    CommittedRow("orders", 0, 40),
                    CommittedRow("orders", 1, 5),
                    CommittedRow("gone", 0, 1),
                ],
            )
        ]
    )
    leader = worker(
        partitions=[
            PartitionRow("orders", 0, 0, 100, 1, 1),
            # Its first 30 records are gone: they are not behind, they are not there.
            PartitionRow("orders", 1, 30, 50, 1, 1),
        ]
    )
    snapshot = Snapshot(STATUS, [owner, leader], [Document()])
    assert found(snapshot, "kafka_consumergroup_lag") == {
        ("billing", "orders", "0"): 60,
        ("billing", "orders", "1"): 20,
    }
    assert found(snapshot, "kafka_consumergroup_lag_sum") == {("billing", "orders"): 80}
    assert found(snapshot, "kafka_consumergroup_members") == {("billing",): 2}
    assert found(snapshot, "kafka_topic_partitions") == {("orders",): 2}


def test_lag_in_seconds_is_that_of_the_worst_partition() -> None:
    committed = [
        CommittedRow("orders", 0, 40),
        CommittedRow("orders", 1, 5),
        CommittedRow("orders", 2, 9),  # nobody knows when that record was made
        CommittedRow("done", 0, 7),
        CommittedRow("unknown", 0, 1),
    ]
    rows = [
        PartitionRow("orders", 0, 0, 100, 1, 0),
        PartitionRow("orders", 1, 30, 50, 1, 0),
        PartitionRow("orders", 2, 0, 50, 1, 0),
        PartitionRow("done", 0, 0, 7, 1, 0),
        PartitionRow("unknown", 0, 0, 7, 1, 0),
    ]
    document = worker(partitions=rows, groups=[GroupRow("billing", "Stable", 1, committed)])
    # What was removed before the log start is not waited for.
    times = {("orders", 0, 40): 8_000, ("orders", 1, 30): 4_000, ("orders", 2, 9): -1}
    snapshot = Snapshot(STATUS, [document], [Document()], times, clock_ms=10_000)
    assert found(snapshot, "moldau_consumergroup_lag_seconds") == {
        ("billing", "orders"): 6.0,
        ("billing", "done"): 0.0,
    }


def test_a_process_that_does_not_answer_is_not_up() -> None:
    snapshot = Snapshot(STATUS, [None, worker()], [None])
    assert found(snapshot, "moldau_up") == {
        ("worker", "0"): 0,
        ("worker", "1"): 1,
        ("router", "0"): 0,
        ("supervisor", "0"): 1,
    }
    assert found(snapshot, "moldau_process_restarts_total") == {("worker", "0"): 2}
    assert found(snapshot, "moldau_process_cpu_seconds_total") == {("worker", "0"): 1.5}


def test_series_of_processes_keep_their_label() -> None:
    plain = Family("moldau_x_total", Kind.COUNTER, "X.", ("api",), [Sample(("Fetch",), 3)])
    both = Family("moldau_y", Kind.GAUGE, "Y.", (), [Sample((), 1)], by_role=True)
    snapshot = Snapshot(STATUS, [worker(families=[plain, both])], [worker(families=[both])])
    assert found(snapshot, "moldau_x_total") == {("Fetch", "0"): 3}
    assert found(snapshot, "moldau_y") == {("worker", "0"): 1, ("router", "0"): 1}


def test_series_of_partitions_are_bounded_and_their_sums_stay() -> None:
    limit = http_families.MAX_PARTITION_SERIES
    rows = [PartitionRow("orders", n, 0, 9, 1, 0) for n in range(limit + 1)]
    committed = [CommittedRow("orders", n, 0) for n in range(limit + 1)]
    document = worker(partitions=rows, groups=[GroupRow("g", "Stable", 1, committed)])
    snapshot = Snapshot(STATUS, [document], [Document()])
    assert found(snapshot, "kafka_consumergroup_lag") == {}
    assert found(snapshot, "kafka_topic_partition_current_offset") == {}
    assert found(snapshot, "kafka_consumergroup_lag_sum") == {("g", "orders"): 9 * (limit + 1)}


def test_sums_are_bounded_and_the_furthest_behind_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_families, "MAX_SUM_SERIES", 3)
    groups = [
        GroupRow(f"g{number}", "Empty", 0, [CommittedRow("t", 0, number)]) for number in range(9)
    ]
    leader = worker(partitions=[PartitionRow("t", 0, 0, 100, 1, 0)], groups=groups)
    assert found(Snapshot(STATUS, [leader], []), "kafka_consumergroup_lag_sum") == {
        ("g0", "t"): 100,
        ("g1", "t"): 99,
        ("g2", "t"): 98,
    }


def test_the_archiver_is_a_group_with_a_metric_of_its_own() -> None:
    archiver = GroupRow("__moldau_archive", "Empty", 0, [CommittedRow("t", 0, 60)])
    leader = worker(partitions=[PartitionRow("t", 0, 0, 100, 1, 0)], groups=[archiver])
    assert found(Snapshot(STATUS, [leader], []), "moldau_archive_lag_records") == {("t",): 40}


def test_ready_when_every_worker_reaches_the_store_and_a_router_answers() -> None:
    assert health.problems(Snapshot(STATUS, [worker()], [None, Document()])) == []
    assert health.problems(Snapshot(None, [None, worker(is_ready=False)], [None])) == [
        "the supervisor does not answer",
        "worker 0 does not answer",
        "worker 1 does not reach the store",
        "no router answers",
    ]
    facts = health.facts(Snapshot(STATUS, [worker()], [None]))
    assert (facts["status"], facts["store"]) == ("unavailable", {"kind": "embedded"})
