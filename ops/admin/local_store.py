"""The store behind a broker of this machine: for what Kafka's protocol has no field for.

Only where the broker runs for this user: its control socket says where its store is. Elsewhere, or
when the store wants a password (which status never tells), there is none to ask. Read only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from broker.store import keys
from ops.serve.control import NotRunningError, ask_status
from ops.serve.runtime import control_socket, runtime_dir

PATIENCE_S = 5.0


@contextmanager
def open_store(port: int, cluster_id: str | None) -> Iterator[redis.Redis | None]:
    """The store of the broker with this bootstrap port, if it is this cluster's."""
    url = _store_url(port)
    if url is None:
        yield None
        return
    with redis.Redis.from_url(
        url, socket_timeout=PATIENCE_S, socket_connect_timeout=PATIENCE_S
    ) as store:
        yield store if _is_of(store, cluster_id) else None


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
