"""`moldau groups history`, `explain`, and resets to what was committed before."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker, wait_until


def committed_by(broker: Broker, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
        return int(found.offset)
    finally:
        consumer.close()


def test_a_groups_history_is_explained_and_a_reset_undone(
    cli: Cli, moldau: Broker, name: str
) -> None:
    group = f"{name}-group"
    cli("produce", name, typed="".join(f"{number}\n" for number in range(10)))
    cli("consume", name, "--group", group, "--count", "7")
    assert committed_by(moldau, group, name) == 7

    def names() -> list[str]:
        history = cli("groups", "history", group, "--json")
        return [] if history.returncode else [e["text"] for e in _json(history.stdout)["events"]]

    wait_until(lambda: "group empty" in names(), 30, "its events are written")
    history = cli.json("groups", "history", group)
    (span,) = history["owners"]
    assert (span["topic"], span["partition"], span["client"]) == (name, 0, "moldau")
    assert history["rebalances"][0]["cause"].endswith("joined")
    assert "joined" in cli("groups", "history", group).stdout
    explained = cli.json("groups", "explain", group, "--since", "1h")
    assert explained["rebalances"] >= 1
    assert "rebalances in 1 h" in cli("groups", "explain", group).stdout

    done = cli("groups", "reset-offsets", group, "--topic", name, "--to-offset", "2", "--execute")
    assert done.returncode == 0, done.stderr
    assert committed_by(moldau, group, name) == 2

    def undone() -> bool:
        plan = cli("groups", "reset-offsets", group, "--all-topics", "--undo", "--json")
        return plan.returncode == 0 and _json(plan.stdout)["partitions"][0]["after"] == 7

    wait_until(undone, 30, "the offsets before the reset are known")
    cli("groups", "reset-offsets", group, "--all-topics", "--undo", "--execute")
    assert committed_by(moldau, group, name) == 7
    now = datetime.now(UTC).isoformat()
    wait_until(
        lambda: _after(cli, group, "--to-commit-at", now) == 2, 30, "as it was before the undo"
    )
    assert "not known" in cli.refused(
        "groups", "reset-offsets", group, "--all-topics", "--to-commit-at", "2001-01-01T00:00:00Z"
    )
    assert "nothing is known" in cli.refused("groups", "history", f"{name}-none")


def _after(cli: Cli, group: str, *goal: str) -> int | None:
    plan = cli("groups", "reset-offsets", group, "--all-topics", *goal, "--json")
    return None if plan.returncode else int(_json(plan.stdout)["partitions"][0]["after"])


def _json(text: str) -> Any:
    return json.loads(text)
