"""A group's record in the store: identity and generation, which Kafka's protocol has no field for.

Only where the broker runs on this machine for this user: its control socket says where its store
is. Elsewhere, or when the store wants a password (which status never tells), nothing is known.
Read only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import redis

from broker.group.record import GroupRecord, UnknownRecordFormat, decode
from broker.store import keys
from router.control import NotRunningError, ask_status
from router.runtime import control_socket, runtime_dir

PATIENCE_S = 5.0


class Records:
    """The records of one broker's groups; without a store, None for each."""

    def __init__(self, store: redis.Redis | None) -> None:
        self._store = store

    def get(self, group_id: str) -> GroupRecord | None:
        if self._store is None:
            return None
        try:
            stored = self._store.hget(keys.group(group_id).decode(), "record")
            return decode(stored) if isinstance(stored, bytes) else None
        except (redis.RedisError, UnknownRecordFormat, msgspec.DecodeError):
            return None  # what cannot be read is not known; all else is told by the broker


@contextmanager
def open_records(port: int, cluster_id: str | None) -> Iterator[Records]:
    """The records of the broker with this bootstrap port, if it is this cluster's."""
    url = _store_url(port)
    if url is None:
        yield Records(None)
        return
    with redis.Redis.from_url(
        url, socket_timeout=PATIENCE_S, socket_connect_timeout=PATIENCE_S
    ) as store:
        yield Records(store if _is_of(store, cluster_id) else None)


def _store_url(port: int) -> str | None:
    try:
        url = ask_status(control_socket(runtime_dir(os.environ), port))["store"]["url"]
    except NotRunningError:
        return None
    return url if isinstance(url, str) and "***" not in url else None


def _is_of(store: redis.Redis, cluster_id: str | None) -> bool:
    """The port alone does not tell: the bootstrap address may be another machine's."""
    try:
        stored = store.get(keys.CLUSTER.decode())
    except redis.RedisError:
        return False
    return isinstance(stored, bytes) and stored.decode() == cluster_id
