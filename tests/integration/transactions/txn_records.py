"""Coordinators that find another record of a transactional id in the store than they left there."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped]
import redis

from moldau.broker.placement import owner_of, slot_of
from moldau.broker.store import keys
from moldau.broker.txn.record import decode, encode
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.client import RawClient
from tests.support.raw.transactions import await_loaded


def restart_with_record(broker: Broker, transactional_id: str, **changes: Any) -> None:
    """Change an id's record in the store while its coordinator is down, and wait until the next
    one has loaded it."""
    key = keys.transaction(slot_of(transactional_id), transactional_id)
    with redis.from_url(broker.store_url) as store, _coordinator_down(broker, transactional_id):
        record = decode(store.hget(key, "record"))
        changed = msgspec.structs.replace(record, revision=record.revision + 10, **changes)
        store.hset(key, mapping={"revision": changed.revision, "record": encode(changed)})


def restart_without_record(broker: Broker, transactional_id: str) -> None:
    """A coordinator that has lost an id, and with it the transaction it had open."""
    slot = slot_of(transactional_id)
    with redis.from_url(broker.store_url) as store, _coordinator_down(broker, transactional_id):
        store.delete(keys.transaction(slot, transactional_id))
        store.srem(keys.transactions(slot), transactional_id)


@contextlib.contextmanager
def _coordinator_down(broker: Broker, transactional_id: str) -> Iterator[None]:
    worker = owner_of(transactional_id, len(broker.processes("worker")))
    old_pid = broker.pid_of("worker", worker)
    process = psutil.Process(old_pid)
    broker.kill("supervisor", number=signal.SIGSTOP)  # the worker stays away until it goes on
    try:
        os.kill(old_pid, signal.SIGKILL)
        wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE, 30, "it is gone")
        yield
    finally:
        broker.kill("supervisor", number=signal.SIGCONT)
    broker.wait_restarted("worker", worker, old_pid)
    with RawClient(broker.port) as client:
        await_loaded(client)
