"""Which history of the store this worker sees: a store_id that changes when its tail may be gone.

An append-only file or a replica holds a prefix of what the store acknowledged. A server that starts
again, or a replica that is promoted, may hold less than was acknowledged, so it begins a new
history. What is known of the old one (ends of logs, cached entries, appends in flight) does not
count any more until each log is proved whole (`broker/log/history.py`).

- **An external server**: its `run_id`, and where it was last promoted (`master_replid2` and its
  offset). Not `master_replid`: a healthy master changes that when its first replica arrives, and an
  hour after its last one left.
- **The embedded store** writes every command to the kernel before it replies, so killing it loses
  nothing. The supervisor decides before each start whether anything can be missing, and keeps the
  store_id in a file (`ops/serve/store_history.py`).

Every connection reads the store_id in its handshake, before anything else is sent on it: no command
reaches a server with another history unnoticed. A poll finds a server that was demoted and promoted
again under an open connection.
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
    """The store_id all connections of a worker agree on, and the facts of the server behind it.

    `file`: of the embedded store. `on_changed` is called with every change but the first.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.store_id = b""
        self.facts = ServerFacts()
        self.replicas = 0  # how many of them are online
        self.was_replicated = False  # some were online when the history before this one ended
        self.address: tuple[str, int] | None = None  # of the server; None: a unix socket
        self.former_address: tuple[str, int] | None = None  # of another one, before the last change
        self.on_changed: Callable[[], None] | None = None
        self._file = file
        self._pipes: list[Pipe] = []

    @property
    def is_kept(self) -> bool:
        """Does a restart keep the store_id, if nothing was lost?"""
        return self._file is not None

    def add(self, pipe: Pipe) -> None:
        self._pipes.append(pipe)

    def admit(self, pipe: Pipe, info: bytes) -> None:
        """Called in the handshake: which history is this connection's?"""
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
                pipe.drop("the store has another history now")
        if before:
            logger.warning("the store began a new history: its logs are checked")
            if self.on_changed is not None:
                self.on_changed()

    def _use(self, facts: ServerFacts) -> None:
        self.facts = facts
        self.replicas = len(facts.online)

    async def watch(self, control: Pipe) -> None:
        """Find changes under open connections, and count replicas; until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self.refresh(control)

    async def refresh(self, control: Pipe) -> None:
        """Read the facts now. A fault is reported by whoever needs the store."""
        store_id = control.store_id
        try:
            facts, found = self._read(await control.ask("INFO", *SECTIONS))
        except StoreFault:
            return
        if control.store_id != store_id:
            return  # connected again meanwhile: its handshake knows better
        if facts.is_master and found == self.store_id:
            self._use(facts)
            return
        # Every connection has to find out for itself which server it belongs to now.
        for pipe in self._pipes:
            pipe.drop("the server is no longer a master, or was promoted again")
