"""What the command line shows of a log that lost its end: epochs, gaps, records and lag."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from confluent_kafka import Consumer, TopicPartition

from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker, wait_until
from tests.support.stores.gaps import fill_with_gap


@pytest.fixture(scope="module")
def topic(cli: Cli, moldau: Broker) -> str:
    """Partition 0 is empty; partition 1 has offsets 0 to 5, then 1000 to 1003 in epoch 1."""
    name = "cli-gap"
    cli.json("topics", "create", name, "--partitions", "2")
    with redis.from_url(moldau.store_url) as store:
        fill_with_gap(store, name, partition=1)

    def is_shown() -> bool:
        return bool(describe(cli, name)["partitions"][1]["leader_epoch"])

    wait_until(is_shown, 30, "every worker knows of the epoch")
    return name


def describe(cli: Cli, topic: str) -> dict[str, Any]:
    (described,) = cli.json("topics", "describe", topic)["topics"]
    found: dict[str, Any] = described
    return found


def test_topics_describe_shows_epochs_and_gaps(cli: Cli, topic: str) -> None:
    described = describe(cli, topic)
    empty, gapped = described["partitions"]
    assert (empty["leader_epoch"], empty["epochs"], empty["gaps"]) == (0, [], [])
    assert gapped["leader_epoch"] == 1
    assert gapped["epochs"] == [{"epoch": 1, "start_offset": 1000}]
    assert gapped["gaps"] == [{"first_offset": 6, "last_offset": 999}]
    assert (gapped["start_offset"], gapped["end_offset"], gapped["records"]) == (0, 1004, 10)
    assert described["records"] == 10
    text = cli("topics", "describe", topic).stdout
    rows = [line.split() for line in text.splitlines()]
    assert ["1", "6", "999"] in rows
    assert any(row[:1] == ["1"] and row[3:6] == ["0", "1004", "10"] for row in rows)
    assert any(row[:1] == ["1"] and len(row) > 6 and row[-1] == "1" for row in rows)


def test_without_the_store_gaps_are_unknown(cli: Cli, topic: str, tmp_path: Any) -> None:
    elsewhere = {"MOLDAU_RUNTIME_DIR": str(tmp_path)}
    (described,) = cli.json("topics", "describe", topic, **elsewhere)["topics"]
    empty, gapped = described["partitions"]
    assert (empty["epochs"], empty["gaps"]) == ([], [])
    assert (gapped["leader_epoch"], gapped["epochs"], gapped["gaps"]) == (1, None, None)
    text = cli("topics", "describe", topic, **elsewhere).stdout
    assert "gaps of partition 1: unknown" in text


@pytest.mark.parametrize(("committed", "lag"), [(0, 10), (4, 6), (6, 4), (500, 4), (1003, 1)])
def test_groups_describe_counts_no_lost_offsets(
    cli: Cli, moldau: Broker, topic: str, committed: int, lag: int
) -> None:
    group_id = f"{topic}-{committed}"
    consumer = Consumer({"bootstrap.servers": moldau.bootstrap, "group.id": group_id})
    consumer.commit(offsets=[TopicPartition(topic, 1, committed)], asynchronous=False)
    consumer.close()
    (group,) = cli.json("groups", "describe", group_id)["groups"]
    assert group["total_lag"] == lag
    (shown,) = group["partitions"]
    assert (shown["committed_offset"], shown["lag"]) == (committed, lag)
