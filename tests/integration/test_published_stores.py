"""The newest version opens the store of every published one, and goes on where it ended."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from moldau.broker.store.format import CURRENT
from moldau.broker.store_loss.embedded_store_id import EmbeddedStoreId
from tests.integration.published.make import records
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker
from tests.support.raw.calls import worker_clients
from tests.support.raw.group import RawMember, coordinator_port

Start = Callable[..., Broker]
STORES = sorted((Path(__file__).parent / "published").glob("*.tar.gz"))
OF_FORMAT_1 = ("0.1.0", "0.2.0")
PATIENCE_S = 60


@pytest.mark.parametrize("store", STORES, ids=lambda path: path.name.removesuffix(".tar.gz"))
def test_a_published_store_is_opened(
    start_moldau: Start, short_tmp_path: Path, store: Path
) -> None:
    version = store.name.removesuffix(".tar.gz")
    expected: dict[str, Any] = json.loads((store.parent / f"{version}.json").read_text())
    data_dir = short_tmp_path / "data"
    with tarfile.open(store) as archive:
        archive.extractall(data_dir, filter="data")
    # The files are others than those that the old broker noted, but they are as it left them.
    as_it_was = EmbeddedStoreId(data_dir, data_dir / "store" / "appendonlydir")
    as_it_was.stopped(is_written=True)
    broker = start_moldau(workers=2, data_dir=data_dir)
    changed = f"the store has format {CURRENT} now" in broker.log()
    assert changed == (version in OF_FORMAT_1)

    bootstrap = broker.bootstrap
    for topic, found in expected["topics"].items():
        assert records(bootstrap, topic) == found, topic
    with RawMember(coordinator_port(broker, "readers"), "readers") as member:
        for topic, offsets in expected["committed"].items():
            for partition, offset in offsets.items():
                assert member.committed(topic, int(partition)) == offset
        assert member.committed("orders", 1) == -1
    described = Cli(broker).json("topics", "describe", *expected["configs"])
    configs = {topic["name"]: topic["configs"] for topic in described["topics"]}
    for topic, wanted in expected["configs"].items():
        found = {config["name"]: config["value"] for config in configs[topic]}
        assert {name: found[name] for name in wanted} == wanted

    _go_on(broker, expected)
    # All of it can be backed up, and read by whoever does not know the broker.
    directory = short_tmp_path / "backup"
    Cli(broker).json("backup", str(directory))
    assert Cli(broker).json("backup", "verify", str(directory))["good"]


def _go_on(broker: Broker, expected: dict[str, Any]) -> None:
    """New records get new offsets, behind the old ones."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "billing"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("orders", "new", partition=0)
    producer.commit_transaction(PATIENCE_S)
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce("sensors", "new")
    assert plain.flush(PATIENCE_S) == 0
    for topic in ("orders", "sensors"):
        before = expected["topics"][topic]["0"]
        after = records(broker.bootstrap, topic)["0"]
        assert after[:-1] == before
        assert after[-1][2] == "new"
        assert after[-1][0] > before[-1][0]
    with worker_clients(broker) as clients:
        assert len(clients) == 2


def test_every_release_has_its_store_here() -> None:
    root = Path(__file__).parents[2]
    lines = (root / "CHANGELOG.md").read_text().splitlines()
    released = [line.split()[1] for line in lines if line.startswith("## ") and "(" in line]
    assert released
    assert {f"{version}.tar.gz" for version in released} <= {path.name for path in STORES}
