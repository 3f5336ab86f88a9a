"""Lag of native topics in `moldau groups describe`: records, though their offsets are times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis
from confluent_kafka import Consumer, TopicPartition

from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker

# Ids of the tests' own choice are of long ago: they must not be trimmed meanwhile.
NATIVE = ("--config", "moldau.storage=native", "--config", "retention.ms=-1")


def test_lag_of_a_native_topic_is_a_count_of_records(
    moldau: Broker, cli: Cli, store: redis.Redis, name: str, short_tmp_path: Path
) -> None:
    cli.json("topics", "create", name, "--partitions", "2", *NATIVE)
    first, second = f"moldau:{name}:0", f"moldau:{name}:1"
    ids = [1_700_000_000_000 + 1_000 * number for number in range(250)]
    for ms in ids:
        store.xadd(first, {"value": "v"}, id=f"{ms}-0")
    store.xadd(second, {"value": "v"})

    def lags(offset: int) -> Any:
        commit(moldau, name, name, offset)
        (described,) = cli.json("groups", "describe", name)["groups"]
        (partition,) = described["partitions"]
        assert partition["native"]
        assert described["total_lag"] == partition["lag"]
        return partition["lag"]

    assert lags(ids[0] << 10) == 250
    assert lags(0) == 250, "from before the first one"
    assert lags(ids[100] << 10) == 150
    assert lags((ids[100] << 10) + 1) == 149
    assert lags((ids[-1] << 10) + 1) == 0
    store.xdel(first, f"{ids[200]}-0")
    assert lags(ids[100] << 10) == 149, "what is there, not what was"
    shown = cli("groups", "describe", name).stdout
    assert "149" in shown
    assert "unknown" not in shown

    elsewhere = {"MOLDAU_RUNTIME_DIR": str(short_tmp_path)}
    (described,) = cli.json("groups", "describe", name, **elsewhere)["groups"]
    assert described["partitions"][0]["lag"] is None
    assert described["total_lag"] is None
    assert "unknown" in cli("groups", "describe", name, **elsewhere).stdout


def test_more_records_than_are_counted_one_by_one(
    moldau: Broker, cli: Cli, store: redis.Redis, name: str
) -> None:
    """They are counted from the start, the end, or from where Redis has counted; else unknown."""
    cli.json("topics", "create", name, "--partitions", "1", *NATIVE)
    stream = f"moldau:{name}:0"
    count, middle = 20_600, 10_300
    with store.pipeline(transaction=False) as pipe:
        for ms in range(1, count + 1):
            pipe.xadd(stream, {"value": "v"}, id=f"{ms}-0")
        pipe.execute()

    def lag() -> int | None:
        (described,) = cli.json("groups", "describe", name)["groups"]
        found: int | None = described["partitions"][0]["lag"]
        return found

    commit(moldau, name, name, (100 << 10) + 1)
    assert lag() == count - 100, "counted from the start"
    commit(moldau, name, name, (count - 100 << 10) + 1)
    assert lag() == 100, "counted from the end"
    commit(moldau, name, name, (middle << 10) + 1)
    assert lag() is None
    store.xgroup_create(stream, name, "0")
    store.xreadgroup(name, "c", {stream: ">"}, count=middle)
    assert lag() == count - middle
    commit(moldau, name, name, (middle - 50 << 10) + 1)
    assert lag() == count - middle + 50, "what was delivered and is not committed is behind"
    commit(moldau, name, name, (middle + 50 << 10) + 1)
    assert lag() == count - middle - 50


def commit(moldau: Broker, group: str, topic: str, offset: int) -> None:
    """Commit as a simple consumer, which does not join."""
    settings = {"bootstrap.servers": moldau.bootstrap, "group.id": group}
    simple = Consumer(settings)
    simple.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    simple.close()
