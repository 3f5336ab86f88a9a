"""Makes the store of a published version, as test data: with that version's own code.

    git archive <commit> | tar x -C /tmp/tree
    python tests/integration/published/make.py /tmp/tree tests/integration/published/<version>

writes `<version>.tar.gz`, the append-only file as the stopped broker left it, and `<version>.json`,
what a client found in it. `test_published_stores.py` opens them with the present version.

| version | commit |
|---|---|
| 0.1.0 | b12a529d~1 |
| 0.2.0 | 5859925a~1 |
| 0.3.0 | 0328c4d7 |
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import redis
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

PORT = 28092
PATIENCE_S = 60
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "orders": (3, {"retention.ms": "-1", "max.message.bytes": "2000000"}),
    "compacted": (
        1,
        {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "segment.ms": "100",
            "delete.retention.ms": "3600000",
        },
    ),
    "sensors": (1, {"moldau.storage": "native", "retention.ms": "-1"}),
    "payments": (1, {"retention.ms": "-1"}),
}


def main(tree: Path, target: Path) -> None:
    name = "moldau.ops.cli" if (tree / "moldau").is_dir() else "ops.cli"
    with tempfile.TemporaryDirectory(prefix="mo-") as made:
        data_dir = Path(made) / "data"
        words = [sys.executable, "-m", name, "serve", "--port", str(PORT), "--workers", "2"]
        process = subprocess.Popen(
            [*words, "--data-dir", str(data_dir)],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), "MOLDAU_RUNTIME_DIR": f"{made}/run"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("moldau ready"), line
        try:
            found = fill(f"127.0.0.1:{PORT}", str(data_dir / "store.sock"))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)
        target.with_suffix(target.suffix + ".json").write_text(json.dumps(found, indent=1) + "\n")
        with tarfile.open(target.with_suffix(target.suffix + ".tar.gz"), "w:gz") as archive:
            for path in sorted((data_dir / "store" / "appendonlydir").iterdir()):
                archive.add(path, f"store/appendonlydir/{path.name}")
            if (data_dir / "history").exists():  # the store id, from 0.3 on
                archive.add(data_dir / "history", "history")


def fill(bootstrap: str, socket: str) -> dict[str, Any]:
    """Fill the broker; returns what clients find in it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [NewTopic(topic, count, 1, config=configs) for topic, (count, configs) in TOPICS.items()]
    for future in admin.create_topics(new).values():
        future.result(PATIENCE_S)
    for codec in ("none", "gzip", "lz4", "snappy"):
        settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "compression.type": codec}
        producer = Producer({**settings, "enable.idempotence": codec != "gzip"})
        for number in range(30):
            producer.produce(
                "orders", f"{codec} {number}", f"key {number % 7}", partition=number % 3,
                headers={"codec": codec},
            )  # fmt: skip
            producer.produce("compacted", f"{codec} {number}", f"key {number % 3}")
        producer.produce("sensors", f"{codec} 21.5", "kitchen")
        assert producer.flush(PATIENCE_S) == 0
        time.sleep(0.3)
    with redis.Redis(unix_socket_path=socket) as store:
        store.xadd("moldau:sensors:0", {"room": "cellar", "t": "12.0"})
        await_compaction(store, bootstrap)
    has_transactions = transactions(bootstrap)
    commit(bootstrap)
    return {
        "topics": {topic: records(bootstrap, topic) for topic in TOPICS},
        "configs": {topic: configs for topic, (_, configs) in TOPICS.items()},
        "committed": {"orders": {"0": 5, "2": 7}},
        "has_transactions": has_transactions,
    }


def await_compaction(store: redis.Redis, bootstrap: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not list(store.scan_iter("*compacted:0*clean:[0-9]*")):
        assert time.monotonic() < deadline, "nothing is compacted"
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce("compacted", "again", "key 0")
        producer.flush(PATIENCE_S)
        time.sleep(1)


def transactions(bootstrap: str) -> bool:
    """One that is committed and one that is aborted, where the version has them."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": "billing", "message.timeout.ms": 20000,
         "transaction.timeout.ms": 20000}
    )  # fmt: skip
    try:
        producer.init_transactions(10)
    except KafkaException:
        return False
    for value, is_committed in (("committed", True), ("aborted", False)):
        producer.begin_transaction()
        producer.produce("payments", value)
        producer.flush(PATIENCE_S)
        if is_committed:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
    return True


def commit(bootstrap: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "group.id": "readers", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    deadline = time.monotonic() + PATIENCE_S
    while len(consumer.assignment()) < 3:
        assert time.monotonic() < deadline, "no assignment"
        consumer.poll(0.5)
    offsets = [TopicPartition("orders", 0, 5), TopicPartition("orders", 2, 7)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def records(bootstrap: str, topic: str) -> dict[str, list[list[Any]]]:
    """Offset, key and value of every record, by partition."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "x", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    count = TOPICS[topic][0]
    consumer.assign([TopicPartition(topic, at, 0) for at in range(count)])
    for at in range(count):
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, at), PATIENCE_S)
        consumer.seek(TopicPartition(topic, at, low))
    found: dict[str, list[list[Any]]] = {str(at): [] for at in range(count)}
    ended: set[int | None] = set()
    while len(ended) < count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"{topic} is not read to its end"
        if message.error():
            ended.add(message.partition())
            continue
        key, value = message.key(), message.value()
        found[str(message.partition())].append(
            [message.offset(), key and key.decode(), value and value.decode()]
        )
    consumer.close()
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
