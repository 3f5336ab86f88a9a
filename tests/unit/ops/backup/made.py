"""A backup of a store that was filled by hand: what a broker leaves, without one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import redis

from moldau.broker.store import keys
from moldau.broker.store.backup import Mark
from moldau.broker.store.format import CURRENT_VALUE
from moldau.broker.store.topics import TopicRecord
from moldau.broker.wire.batch import set_base_offset
from moldau.ops.backup.files import copy_stream, make_directory
from moldau.ops.backup.manifest import APPEND_ONLY, FORMAT, MANIFEST, FileEntry, Manifest, encoded
from moldau.ops.serve.scratch_store import scratch_store
from tests.support.raw.client import make_batch

TOPIC = "orders"
LOG = keys.stream(TOPIC, 0, 0)


def batch(base: int, count: int) -> bytes:
    made = make_batch([(None, b"value", 1_000)] * count)
    set_base_offset(made, base)
    return bytes(made)


def fill(client: redis.Redis) -> None:
    record = TopicRecord(TOPIC, b"t" * 16, 1, 0, 1)
    client.set(keys.CLUSTER, "cluster")
    client.set(keys.FORMAT, CURRENT_VALUE)
    client.hset(keys.TOPICS.decode(), TOPIC, msgspec.msgpack.encode(record))
    client.hset(keys.state(LOG).decode(), mapping={"start": 0, "history": "before", "r:1": 5_000})
    for base in (0, 10, 20):
        client.xadd(LOG, {"b": batch(base, 10)}, id=f"{base}-1")


def make_backup(directory: Path, work: Path) -> Path:
    """A backup in `directory`; `work` is where the store was."""
    work.mkdir()
    with scratch_store(work) as store:
        fill(store._redis)
        mark = store.mark()
        store.shut_down()
    files: dict[str, FileEntry] = {}
    make_directory(directory / APPEND_ONLY)
    for path in sorted((work / "appendonlydir").iterdir()):
        name = f"{APPEND_ONLY}/{path.name}"
        with path.open("rb", buffering=0) as file:
            files[name] = copy_stream(file, path.stat().st_size, directory / name, lambda _: None)
    write_manifest(directory, Manifest(FORMAT, "0.3.0", "before", mark, files))
    return directory


def write_manifest(directory: Path, manifest: Manifest) -> None:
    (directory / MANIFEST).write_bytes(encoded(manifest))


def with_mark(manifest: Manifest, **changes: object) -> Manifest:
    mark: Mark = msgspec.structs.replace(manifest.mark, **changes)
    return msgspec.structs.replace(manifest, mark=mark)
