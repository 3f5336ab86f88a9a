"""A mirrored topic in a backup: it comes back whole, and no mirror writes to offsets of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from tests.integration.mirror.mirroring import PATIENCE_S, batches, bounds, mirror_once, words
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient

Start = Callable[..., Broker]
TOPIC = "shop"


def produce(broker: Broker, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce(TOPIC, b"value %d" % number)
    assert producer.flush(PATIENCE_S) == 0


def test_a_restored_mirror_is_refused(start_moldau: Start, short_tmp_path: Path) -> None:
    source, target = start_moldau(workers=1), start_moldau(workers=1)
    with RawClient(source.port) as client:
        create_topic(client, TOPIC)
    produce(source, 20)
    mirror_once(source, target, TOPIC)
    before = batches(target, TOPIC)
    backup, data_dir = short_tmp_path / "backup", short_tmp_path / "restored"
    cli = Cli(target)
    cli.json("backup", str(backup))
    assert cli.json("backup", "verify", str(backup))["good"]
    produce(source, 5)
    mirror_once(source, target, TOPIC)
    assert target.stop() == 0
    cli.json("restore", str(backup), "--data-dir", str(data_dir))

    target = start_moldau(workers=1, data_dir=data_dir)
    (found,), (copied,) = batches(target, TOPIC), before
    assert found[:-1] == copied, "and the control record of the new epoch behind them"
    ((_, end),) = bounds(target, TOPIC)
    done = Cli(target)(*words(source, TOPIC, "--once"))
    assert done.returncode == 1, done.stdout
    assert f"topic {TOPIC} is not mirrored" in done.stderr
    assert "delete the topic here" in done.stderr
    assert "Traceback" not in done.stderr
    assert bounds(target, TOPIC) == [(0, end)]
