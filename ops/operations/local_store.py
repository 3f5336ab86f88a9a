"""The store behind a broker of this machine, for what Kafka's protocol has no field for.

The control socket of the broker names its store, and only the user that runs the broker can ask
it. For other brokers, and for a store with a password (which the status never shows), there is
none. Read only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from moldau.broker.errors import StoreFault
from moldau.ops.serve.control import NotRunningError, ask_status
from moldau.ops.serve.runtime import control_socket, runtime_dir

if TYPE_CHECKING:
    from moldau.broker.store.blocking import BlockingStore


@contextmanager
def open_store(port: int, cluster_id: str | None) -> Iterator[BlockingStore | None]:
    """The store of the broker with this bootstrap port, if it is this cluster's."""
    url = _store_url(port)
    if url is None:
        yield None
        return
    from moldau.broker.store.blocking import (
        BlockingStore,  # redis-py takes longer than all the rest
    )

    with BlockingStore(url) as store:
        yield store if _belongs_to(store, cluster_id) else None


def _store_url(port: int) -> str | None:
    try:
        url = ask_status(control_socket(runtime_dir(os.environ), port))["store"]["url"]
    except NotRunningError:
        return None
    return url if isinstance(url, str) and "***" not in url else None


def _belongs_to(store: BlockingStore, cluster_id: str | None) -> bool:
    """The port alone does not tell: the bootstrap address may be another machine's."""
    try:
        stored = store.cluster_id()
    except StoreFault:
        return False
    return stored is not None and stored == cluster_id
