"""Logs with gaps: what a store leaves that lost the end of a log, once the log goes on above it."""

from typing import Any

import msgspec

from moldau.broker.store import keys
from moldau.broker.store.topics import Change
from moldau.broker.store_loss.epochs import Epochs
from moldau.broker.wire.records import Record, build_batch


def lose_and_go_on(store: Any, log: bytes, end: int, start: int, *, log_start: int = 0) -> Epochs:
    """The entries from `end` on are lost; the log goes on at `start`, in the next epoch.

    Straight in the store, with the commands of a bump. No worker knows of it: logs that are open
    have to be loaded again.
    """
    state = keys.state(log)
    lost = [entry_id for entry_id, _ in store.xrange(log, b"%d-1" % end)]
    if lost:
        store.xdel(log, *lost)
    if int(store.hget(state, "snapshot_at") or -1) > end:
        store.hdel(state, "snapshot_at", "snapshot")
    before = Epochs.parse(store.hget(state, "epochs"))
    epochs = before.followed_by(start, end, log_start=log_start)
    store.execute_command("XSETID", log, b"%d-0" % start)
    store.hset(state, "epochs", epochs.text)
    return epochs


def fill_with_gap(
    store: Any,
    topic: str,
    *,
    end: int = 6,
    start: int = 1000,
    after: int = 4,
    partition: int = 0,
    announced: bool = True,
) -> bytes:
    """Fill a log that no worker has loaded: offsets below `end`, a gap, `after` more in epoch 1.

    An entry for each record, with a timestamp of ten times its offset. Returns the log's key.
    """
    log = keys.stream(topic, 0, partition)
    for offset in range(end):
        add_record(store, log, offset)
    lose_and_go_on(store, log, end, start)
    for offset in range(start, start + after):
        add_record(store, log, offset, 1)
    if announced:
        store.hset(keys.EPOCHS, log, 1)
        change = msgspec.msgpack.encode(Change("epoch", topic, partition))
        store.xadd(keys.CHANGES, {"c": change})
    return log


def add_record(
    store: Any,
    log: bytes,
    offset: int,
    epoch: int = 0,
    *,
    producer_id: int = -1,
    sequence: int = -1,
) -> None:
    """An entry with one record, as a worker would append it."""
    record = Record(offset, offset * 10, b"key-%d" % offset, b"value-%d" % offset)
    batch = build_batch(
        [record],
        base_offset=offset,
        last_offset=offset,
        leader_epoch=epoch,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
    )
    store.xadd(log, {"b": bytes(batch)}, id=f"{offset}-1")
