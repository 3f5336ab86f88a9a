"""The first `topics describe` after a start shows what the log has, not what was known before."""

from __future__ import annotations

import os
from collections.abc import Callable

from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker
from tests.support.proofs.hammer import worker_ports
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient, make_batch
from tests.support.stores.lossy import newest_file

Start = Callable[..., Broker]
TOPIC, PARTITIONS = "orders", 6


def test_it_shows_what_the_logs_have(start_moldau: Start) -> None:
    broker = start_moldau(workers=2)
    ports = worker_ports(broker)
    batch = make_batch([(None, b"value", 1_000)] * 10)
    with RawClient(ports[0]) as client:
        create_topic(client, TOPIC, partitions=PARTITIONS)
        for at in range(PARTITIONS):
            answer = client.produce(TOPIC, bytearray(batch), partition=at)
            assert answer.error_code == 0
    broker.kill_everything()
    file = newest_file(broker.data_dir / "store")
    os.truncate(file, file.stat().st_size - 3)

    broker = start_moldau(workers=2, data_dir=broker.data_dir)
    cli = Cli(broker)
    first, second = (cli.json("topics", "describe", TOPIC) for _ in range(2))
    assert first == second
    (described,) = first["topics"]
    for one in described["partitions"]:
        assert one["leader_epoch"] == 1
        (gap,) = one["gaps"]
        assert gap["last_offset"] + 1 == one["end_offset"] == one["epochs"][0]["start_offset"]
        assert one["records"] == gap["first_offset"] in (0, 10)
    assert described["records"] in (PARTITIONS * 10 - 10, PARTITIONS * 10)
