"""One blocking XREAD per worker: it learns what other workers did, without polling.

It waits on the change stream, on this worker's wake stream (other workers appended to a partition
this one leads, or applied a change it announced), and on the logs it tails without leading them.
When the set of tailed logs changes, CLIENT UNBLOCK ends the waiting XREAD and the next one is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from moldau.broker.errors import StoreDown, StoreFault, StoreRefused
from moldau.broker.store import keys
from moldau.broker.store.change_acks import Acknowledgement
from moldau.broker.store.native import RawEntries
from moldau.broker.store.pipe import Pipe
from moldau.broker.store.streams import Entry, decode_entries
from moldau.broker.store.topics import Change, read_acknowledgement, read_change

logger = logging.getLogger("moldau.store")

OnChange = Callable[[Change], None]
OnWake = Callable[[bytes], None]
OnApplied = Callable[[Acknowledgement], None]
OnEntries = Callable[[bytes, list[Entry]], None]
OnNative = Callable[[bytes, RawEntries], None]


class Watcher:
    """Runs until closed. Callbacks: a change, the key of a woken log, a change applied by another
    worker, new entries of a tailed log.

    `on_reset` is called after the connection was lost: entries may have been missed.
    """

    def __init__(
        self,
        blocking: Pipe,
        control: Pipe,
        worker: int,
        *,
        on_change: OnChange,
        on_wake: OnWake,
        on_applied: OnApplied,
        on_entries: OnEntries,
        on_native: OnNative,
        on_reset: Callable[[], None],
    ) -> None:
        self._blocking = blocking
        self._control = control
        self._wake_key = keys.wake(worker)
        self._on_change = on_change
        self._on_wake = on_wake
        self._on_applied = on_applied
        self._on_entries = on_entries
        self._on_native = on_native
        self._on_reset = on_reset
        self._changes_at = b"$"
        self._wake_at = b"$"
        self._tails: dict[bytes, int] = {}
        self._native: dict[bytes, bytes] = {}  # streams of native topics, by their last known id
        self._added = 0  # logs added so far
        self._waited_for = 0  # how many of them the XREAD in flight knows
        self._task: asyncio.Task[None] | None = None
        self._unblocking = False

    def start(self, changes_at: bytes) -> None:
        self._changes_at = changes_at
        self._wake_at = b"0-0"
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def tail(self, key: bytes, end: int) -> None:
        """Deliver entries of this log at `end` or above from now on."""
        self._tails[key] = end
        self._added += 1
        self._restart()

    def tail_native(self, key: bytes, last: bytes) -> None:
        """Deliver entries of this stream above an id from now on."""
        self._native[key] = last
        self._added += 1
        self._restart()

    def untail(self, key: bytes) -> None:
        # The XREAD in flight may still return entries of it, which does no harm.
        self._tails.pop(key, None)
        self._native.pop(key, None)

    def tails(self, key: bytes) -> bool:
        return key in self._tails or key in self._native

    def _restart(self) -> None:
        if not self._unblocking and self._blocking.is_up:
            self._unblocking = True
            words = ("CLIENT", "UNBLOCK", self._blocking.client_id)
            self._control.call(*words).add_done_callback(self._unblocked)

    def _unblocked(self, future: asyncio.Future[Any]) -> None:
        self._unblocking = False
        fault = future.exception()
        if self._waited_for < self._added:
            # XREAD was not blocked at that moment, or another log was added since.
            delay = 0.002 if fault is None else 0.1
            asyncio.get_running_loop().call_later(delay, self._restart_if_behind)

    def _restart_if_behind(self) -> None:
        if self._waited_for < self._added:
            self._restart()

    async def _run(self) -> None:
        while True:
            try:
                await self._blocking.wait_up()
                reply = await self._blocking.call(*self._words())
            except StoreDown:  # the server is no longer a master, for one
                await self._reset()
            except StoreRefused as fault:
                logger.warning("watching the store: %s", fault)
                if not await self._drop_non_streams():
                    # Loading after a restart, or no permission: try again, one log line a second.
                    await asyncio.sleep(1)
            except StoreFault:
                await self._reset()
            else:
                for key, entries in reply or ():
                    try:
                        self._deliver(key, entries)
                    except Exception:
                        # A defect in a callback must not end the watching.
                        logger.exception("entries of %r could not be delivered", key)

    async def _reset(self) -> None:
        """The connection was lost: entries may have been missed."""
        await self._blocking.wait_up()
        self._on_reset()

    async def _drop_non_streams(self) -> bool:
        """Find native topics whose key is no longer a stream: they make XREAD fail for all
        others."""
        found = False
        for key in list(self._native):
            try:
                kind = await self._control.call("TYPE", key)
            except StoreFault:
                return False
            if kind not in (b"stream", b"none"):
                found = True
                self.untail(key)
        return found

    def _words(self) -> list[bytes | str | int]:
        tails = list(self._tails.items())
        native = list(self._native.items())
        self._waited_for = self._added
        return [
            *("XREAD", "COUNT", 64, "BLOCK", 20_000, "STREAMS", keys.CHANGES, self._wake_key),
            *(key for key, _ in tails),
            *(key for key, _ in native),
            self._changes_at,
            self._wake_at,
            # Entries are `<base>-1`: everything above `<end>-0` begins at the end or after it.
            *(b"%d-0" % end for _, end in tails),
            *(last for _, last in native),
        ]

    def _deliver(self, key: bytes, entries: list[Any]) -> None:
        if key == keys.CHANGES:
            self._changes_at = entries[-1][0]
            for _, fields in entries:
                self._on_change(read_change(fields[1]))
        elif key == self._wake_key:
            self._wake_at = entries[-1][0]
            for log_key in {fields[1] for _, fields in entries if fields[0] == b"k"}:
                self._on_wake(log_key)
            for _, fields in entries:
                if fields[0] == b"a":
                    self._on_applied(read_acknowledgement(fields[1]))
        elif key in self._native:
            self._native[key] = entries[-1][0]
            self._on_native(key, [(entry_id, fields) for entry_id, fields in entries])
        elif key in self._tails:
            self._tails[key] = int(entries[-1][0][:-2]) + 1
            self._on_entries(key, decode_entries(entries))
