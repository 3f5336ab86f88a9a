"""What `moldau top` computes from two samples."""

from __future__ import annotations

from typing import Any

from moldau.broker.metrics.document import (
    CommittedRow,
    Document,
    Family,
    GroupRow,
    HistogramSample,
    Kind,
    PartitionRow,
    Sample,
)
from moldau.ops.commands.top_screen import facts, parts
from moldau.ops.http.snapshot import Process, Snapshot, Status, Usage
from moldau.ops.operations.top import Sampled, overview


def counter(name: str, label: str, value: float) -> Family:
    return Family(name, Kind.COUNTER, "", ("label",), [Sample((label,), value)])


def worker(requests: int, orders: int, lag_counts: list[int], lag_total: float) -> Document:
    return Document(
        families=[
            counter("moldau_kafka_requests_total", "Fetch", requests),
            counter("moldau_topic_records_in_total", "orders", orders),
            counter("moldau_topic_bytes_in_total", "orders", orders * 10),
            Family("moldau_event_loop_lag_seconds", Kind.HISTOGRAM, "", (),
                   histograms=[HistogramSample((), lag_counts, lag_total)], bounds=[0.001, 0.1]),
            Family("moldau_store_memory_bytes", Kind.GAUGE, "", (), [Sample((), 1 << 20)]),
            Family("moldau_store_memory_limit_bytes", Kind.GAUGE, "", (), [Sample((), 4 << 20)]),
        ],
        partitions=[PartitionRow("idle", 0, 0, 0, 0, 0), PartitionRow("orders", 0, 0, 50, 7, 0)],
        groups=[
            GroupRow("done", "Stable", 1, [CommittedRow("orders", 0, 50)]),
            GroupRow("late", "Empty", 0, [CommittedRow("orders", 0, 10)]),
        ],
    )  # fmt: skip


def sampled(at: float, pid: int, cpu: float, document: Document | None) -> Sampled:
    status = Status([Process("worker", 0, pid, 9093, at, 0, "running")], {})
    snapshot = Snapshot(status, [document], [Document()])
    return Sampled(at, snapshot, {("worker", 0): Usage(cpu, 1000, 5)})


def between(before: Sampled, after: Sampled) -> dict[str, Any]:
    found = overview(before, after)
    assert parts(found, 10)
    return found


def test_rates_are_differences_over_time() -> None:
    before = sampled(10, 7, 1.0, worker(100, 20, [1, 0, 0], 0.0))
    found = between(before, sampled(12, 7, 2.0, worker(300, 40, [4, 1, 0], 0.05)))
    assert found["problems"] == []
    assert (found["requests_per_s"], found["records_in_per_s"]) == (100, 10)
    (process,) = found["processes"]
    assert (process["cpu_percent"], process["memory_bytes"]) == (50, 1000)
    assert (process["loop_lag_mean_s"], process["loop_lag_max_s"]) == (0.0125, 0.1)
    assert [each["topic"] for each in found["topics"]] == ["orders", "idle"]
    assert found["topics"][0]["bytes_in_per_s"] == 100
    assert [(each["group"], each["lag"]) for each in found["groups"]] == [("late", 40), ("done", 0)]
    assert facts(found)["store memory"] == "1.0 MiB of 4.0 MiB (25 %)"


def test_a_process_that_was_restarted_has_no_rates_yet() -> None:
    before = sampled(10, 7, 9.0, worker(1000, 200, [9, 0, 0], 0.0))
    found = between(before, sampled(12, 8, 0.5, worker(30, 4, [1, 0, 0], 0.0)))
    assert (found["requests_per_s"], found["records_in_per_s"]) == (0, 0)
    (process,) = found["processes"]
    assert (process["cpu_percent"], process["loop_lag_mean_s"]) == (None, None)


def test_a_process_that_does_not_answer_is_named_and_has_no_rates() -> None:
    before = sampled(10, 7, 1.0, worker(100, 20, [1, 0, 0], 0.0))
    found = between(before, sampled(12, 7, 1.0, None))
    assert found["problems"] == ["worker 0 does not answer"]
    assert found["requests_per_s"] == 0
    assert found["processes"][0]["requests_per_s"] is None
    assert "worker 0 does not answer" in str(facts(found)["state"])
