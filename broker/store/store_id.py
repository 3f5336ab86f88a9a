"""The store id: it changes when the store may have lost acknowledged writes.

An append-only file or a replica holds a prefix of what the store has acknowledged. A server that
restarts, or a replica that is promoted, may hold less than was acknowledged, so it gets a new store
id. What workers know (ends of logs, cached entries, appends in flight) does not count any more
until each log is checked (`broker/store_loss/`).

- **An external server**: its `run_id`, and where it was last promoted (`master_replid2` and its
  offset). Not `master_replid`: a healthy master changes that when its first replica attaches, and
  an hour after its last replica has left.
- **The embedded store** writes every command to the kernel before it replies, so killing it loses
  nothing. The supervisor decides before each start whether anything can be missing, and keeps the
  store id in a file (`store_loss/embedded_store_id.py`).

Every connection reads the store id in its handshake, before anything else is sent on it: no command
reaches a changed server unnoticed. A poll finds a server that was demoted and promoted again under
an open connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau.broker.errors import StoreFault, StoreUnavailable
from moldau.broker.store.server_facts import SECTIONS, ServerFacts

if TYPE_CHECKING:
    from moldau.broker.store.pipe import Pipe

logger = logging.getLogger("moldau.store")

POLL_SECONDS = 0.5

Ask = Callable[..., Awaitable[Any]]


class StoreIdentity:
    """The store id that all connections of a worker agree on, and the facts of the server.

    `file`: holds the embedded store's id. `on_changed` is called on every change but the first.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.store_id = b""
        self.facts = ServerFacts()
        self.replicas = 0  # how many are online
        self.was_replicated = False  # some were online before the last change
        self.address: tuple[str, int] | None = None  # of the server; None: over a unix socket
        self.former_address: tuple[str, int] | None = (
            None  # of another server, before the last change
        )
        self.on_changed: Callable[[], None] | None = None
        self.on_replicas: Callable[[int], None] | None = None  # how many are online now
        self._file = file
        self._pipes: list[Pipe] = []

    @property
    def is_kept(self) -> bool:
        """Does the store keep its id when it restarts without a loss?"""
        return self._file is not None

    def add(self, pipe: Pipe) -> None:
        self._pipes.append(pipe)

    def admit(self, pipe: Pipe, info: bytes) -> None:
        """Take the store id of a connection; called in its handshake. Raises StoreUnavailable."""
        facts, store_id = self._read(info)
        if not facts.is_master:
            raise StoreUnavailable("the server is a replica: waiting for it to be a master")
        pipe.store_id = store_id
        if store_id != self.store_id:
            self._change(store_id, facts, pipe.address)
        self._use(facts)

    def _read(self, info: bytes) -> tuple[ServerFacts, bytes]:
        facts = ServerFacts.parse(info)
        if self._file is None:
            return facts, facts.store_id.encode()
        try:
            return facts, self._file.read_bytes()
        except OSError as fault:
            raise StoreUnavailable(f"{self._file}: {fault.strerror}") from None

    def _change(self, store_id: bytes, facts: ServerFacts, address: tuple[str, int] | None) -> None:
        before, self.store_id = self.store_id, store_id
        self.was_replicated = self.replicas > 0
        self._use(facts)
        self.former_address = self.address if self.address != address else None
        self.address = address
        for pipe in self._pipes:
            if pipe.store_id not in (b"", store_id):  # empty: it is still connecting
                pipe.drop("the store has changed")
        if before:
            logger.warning(
                "the store restarted or failed over, and may have lost writes: its logs are checked"
            )
            if self.on_changed is not None:
                self.on_changed()

    def _use(self, facts: ServerFacts) -> None:
        self.facts = facts
        self.replicas = len(facts.online)
        if self.on_replicas is not None:
            self.on_replicas(self.replicas)

    async def watch(self, control: Pipe) -> None:
        """Find changes under open connections and count replicas, until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self.refresh(control)

    async def refresh(self, control: Pipe) -> None:
        """Read the facts now. Faults are left to whoever needs the store."""
        store_id = control.store_id
        try:
            facts, found = self._read(await control.ask("INFO", *SECTIONS))
        except StoreFault:
            return
        if control.store_id != store_id:
            return  # it has reconnected meanwhile: the handshake knows better
        if facts.is_master and found == self.store_id:
            self._use(facts)
            return
        # Every connection has to find out for itself which server it belongs to now.
        for pipe in self._pipes:
            pipe.drop("the server is no longer a master, or was promoted again")
