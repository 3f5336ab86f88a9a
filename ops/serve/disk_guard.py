"""Keeps the embedded store from losing anything when its disk fills up.

When a write to its file fails, the server keeps the bytes in memory and still acknowledges them. So
it must not come to that, and if it does, it must not go unnoticed:

- **The mark.** Below `min_free` bytes of free space writes are refused, by a memory limit of one
  byte that all clients of the server meet from the next command on. Reads go on, and so does what
  frees space. Above the mark plus a quarter they are taken again. Between two looks producers
  cannot fill what is above the mark either, as the memory limit follows the free space; and where
  that is little they cannot fill more than the runway, whatever other programs do meanwhile.
- **The runway.** Space is allocated beyond the end of the file, so that another program which fills
  the disk cannot take it, and a file that ends before the end of its runway lacks nothing
  (`broker/store_loss/embedded_store_id.py`).
- **The reserve.** A file that is given up when a write has failed all the same: the server then
  writes what it kept, and lives on.

It looks four times a second, more often when there is little room or the file grows quickly, and
once more before the server is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import msgspec

from moldau.broker.errors import StoreFault
from moldau.broker.store.local_server import (
    NOTHING_MORE,
    LocalServer,
    ServerState,
    disk_limit,
    operators_limit,
)
from moldau.broker.store.probe import is_ready
from moldau.broker.store_loss.embedded_store_id import EmbeddedStoreId, Extent
from moldau.ops.serve.allocation import (
    Outcome,
    allocate_beyond,
    allocated_bytes,
    give_up_reserve,
    make_reserve,
)
from moldau.ops.serve.disk_room import Marks, Room
from moldau.ops.serve.store_files import remove_leftovers

logger = logging.getLogger("moldau.store")

REMIND_SECONDS = 60.0
RESCUE_ATTEMPTS = 5
LEAST_FOR_RESCUE = 1 << 16
FINISH_SECONDS = 2.0
REMEDY = (
    "make room on it, or delete topics or lower retention: the file is then rewritten to what is "
    "left, if that fits (--store-min-free sets the mark)"
)


class DiskGuard:
    """`files`: the server's directory, in `data_dir`. `maxmemory`: its limit when there is room."""

    def __init__(
        self,
        data_dir: Path,
        files: Path,
        socket: str,
        store_id: EmbeddedStoreId,
        *,
        min_free: int | None = None,
        maxmemory: int = 0,
    ) -> None:
        self._data_dir = data_dir
        self._files = files
        self._socket = socket
        self._store_id = store_id
        self._own_min_free = min_free
        self._maxmemory = operators_limit(maxmemory)
        self._limit = self._maxmemory  # what the server has
        self._reserve = data_dir / "reserve"
        self._lock = asyncio.Lock()
        self._server = LocalServer(socket)
        self._is_refusing = False
        self._has_failed = False
        self._is_written = True  # when it was stopped
        self._reminded_at = 0.0
        self._last_size: tuple[str, int, float] | None = None
        self._grown_per_s = 0.0  # the file
        self._runway = Outcome.DONE  # when it was last extended
        self.room = Room.of(data_dir)
        self.marks = Marks.of(self.room.total, min_free)
        self.facts: dict[str, Any] = {}  # for the status
        self._tell()

    # --- the life of the server ---

    def before_start(self) -> None:
        """Make room and prepare the files before each start of the server. Raises OSError."""
        remove_leftovers(self._files)
        self._measure()
        try:
            self._begin()
        except OSError:
            give_up_reserve(self._reserve)
            self._begin()
        self._has_failed = False
        self._is_refusing = self.marks.refuses(self.room.free, refused=self._is_refusing)
        if self._is_refusing:
            self._remind("is nearly full")
        self._limit = NOTHING_MORE if self._is_refusing else self._maxmemory
        self._tell()

    def _begin(self) -> None:
        self._store_id.begin(margin=self.marks.margin, is_ample=self._is_ample)

    def late_argv(self) -> tuple[str, str]:
        return "--maxmemory", str(self._limit)

    async def is_ready(self) -> bool:
        """Whether the server answers; its file has a runway then."""
        if not await is_ready(self._socket):
            return False
        await self.look()
        return True

    async def keep_looking(self) -> None:
        """While the server runs; until cancelled."""
        while True:
            await asyncio.sleep(self.marks.look_again_s(self._grown_per_s, self.room.free))
            await self.look()

    async def finish(self) -> None:
        """All clients of the server are gone, and it is about to be stopped."""
        self._is_written = False
        try:
            async with asyncio.timeout(FINISH_SECONDS), self._lock:
                state = await self._server.state()
                if not state.is_written:
                    state = await self._rescue(state)
                self._is_written = state.is_written and not state.unwritten_bytes
        except (StoreFault, OSError, TimeoutError) as fault:
            logger.warning("the store does not say whether it has written everything: %s", fault)
        self._server.close()

    def stopped(self) -> None:
        self._store_id.stopped(is_written=self._is_written)

    # --- looking ---

    async def look(self) -> None:
        """Measure the disk and act on it. Faults are logged."""
        async with self._lock:
            try:
                self._measure()
                found = self._extended(self._store_id.look())
                # Only now: what was allocated counts if no write had failed by then.
                state = await self._server.state()
                if not state.is_written:
                    state = await self._rescue(state)
                    found = self._store_id.look()
                if state.is_written:
                    self._note(found)
                    await self._decide(state, found.allocated - found.written_size)
            except StoreFault as fault:  # it is being restarted
                logger.debug("cannot read the store's file: %s", fault)
            except OSError as fault:
                self._warn(f"the extent of the store's file cannot be noted: {fault}")
            self._tell()

    def _measure(self) -> None:
        self.room = Room.of(self._data_dir)
        self.marks = Marks.of(self.room.total, self._own_min_free)

    @property
    def _is_ample(self) -> bool:
        return self.room.free >= self.marks.ample

    def _extended(self, found: Extent) -> Extent:
        """Add a runway beyond its end, as far as the disk has room."""
        size, now = found.written_size, time.monotonic()
        self._grown_per_s = 0.0
        if self._last_size is not None and self._last_size[0] == found.written:
            _, before, then = self._last_size
            self._grown_per_s = (size - before) / max(now - then, 0.001)
        self._last_size = found.written, size, now
        ahead, free = found.allocated - size, self.room.free
        least = 2 * self.marks.margin
        runway = least if self._is_refusing else self.marks.runway_for(self._grown_per_s, free)
        # Never all there is: some file systems take what they can before they give up.
        runway = min(runway, max(ahead, 0) + free // 2)
        if not found.written or ahead >= max(runway * 3 // 4, least):
            self._runway = Outcome.DONE
            return found
        path = self._store_id.path_of(found)
        self._runway = allocate_beyond(path, size + runway)
        self._measure()
        extended = msgspec.structs.replace(found, allocated=allocated_bytes(path))
        if self._runway is Outcome.DONE and extended.allocated - size < least:
            self._runway = Outcome.FULL
        return extended

    def _note(self, found: Extent) -> None:
        margin = self.marks.margin
        assured: int | None = found.allocated - margin
        if self._runway is Outcome.UNSUPPORTED:
            assured = None
        self._store_id.note(found, assured=assured, margin=margin, is_ample=self._is_ample)
        if self._has_failed:
            self._has_failed = False
            logger.warning("the store has written everything to its file again")

    async def _decide(self, state: ServerState, ahead: int) -> None:
        free, marks = self.room.free, self.marks
        if self._reserve_is_missing() and free - marks.reserve >= marks.enough_again:
            try:
                await asyncio.to_thread(make_reserve, self._reserve, marks.reserve)
                self._measure()
            except OSError as fault:
                logger.debug("no reserve on the disk: %s", fault)
        # Without a runway a quota is exhausted, whatever is free.
        refuses = self._runway is Outcome.FULL or marks.refuses(
            self.room.free, refused=self._is_refusing
        )
        growth = marks.growth(self.room.free, ahead)
        limit = NOTHING_MORE if refuses else disk_limit(state.used_memory + growth)
        if not refuses and 0 < self._maxmemory < limit:
            limit = self._maxmemory
        # Not with every look: a change that matters.
        if abs(limit - self._limit) > growth // 4 or refuses != self._is_refusing:
            await self._server.limit_memory(limit)
            self._limit = limit
        if self._is_refusing and not refuses:
            self._reminded_at = 0.0
            logger.warning(
                "there is room again on the store's disk: %s free, producers are served",
                _text(self.room.free),
            )
        self._is_refusing = refuses
        if refuses:
            self._remind("is nearly full")

    def _reserve_is_missing(self) -> bool:
        try:
            return allocated_bytes(self._reserve) < self.marks.reserve
        except FileNotFoundError:
            return True

    # --- rewriting the file, which takes a copy of it ---

    @property
    def is_short(self) -> bool:
        return self._is_refusing

    def room_for_copies(self) -> int:
        """Bytes. While writes are refused a copy may use what is kept free for them, but for a
        runway of the part that is begun with it."""
        free = self.room.free
        if self._is_refusing:
            return max(free - 2 * self.marks.margin, free // 2)
        return max(free - self.marks.enough_again, 0)

    # --- a write has failed ---

    async def _rescue(self, state: ServerState) -> ServerState:
        """Give the server what it needs to write what it could not. Persist the fact first: both
        processes may be killed before it is done."""
        self._store_id.note_failure()
        if not self._has_failed:
            self._has_failed = True
            self._remind("is full, and a write to the store's file failed")
        await self._server.limit_memory(NOTHING_MORE)
        self._limit, self._is_refusing = NOTHING_MORE, True
        give_up_reserve(self._reserve)
        found = self._store_id.look()
        needed = state.unwritten_bytes + LEAST_FOR_RESCUE
        for size in (self.marks.runway + needed, needed):
            # At once, or another program that fills the disk takes it.
            end = found.written_size + size
            if allocate_beyond(self._store_id.path_of(found), end) is not Outcome.FULL:
                break
        for _ in range(RESCUE_ATTEMPTS):
            # Each command is a turn of the server, at whose end it tries again.
            state = await self._server.state()
            if state.is_written:
                break
            await asyncio.sleep(0.01)
        return state

    # --- telling ---

    def _remind(self, what: str) -> None:
        self._warn(
            f"THE DISK of {self._data_dir} {what}: {_text(self.room.free)} of "
            f"{_text(self.room.total)} are free, producers are refused until "
            f"{_text(self.marks.enough_again)} are; {REMEDY}"
        )

    def _warn(self, text: str) -> None:
        now = time.monotonic()
        if not self._reminded_at or now - self._reminded_at >= REMIND_SECONDS:
            self._reminded_at = now
            logger.critical("%s", text)

    def _tell(self) -> None:
        self.facts.update(
            free_bytes=self.room.free,
            total_bytes=self.room.total,
            min_free_bytes=self.marks.min_free,
            refuses_writes=self._is_refusing,
            last_write_failed=self._has_failed,
        )


def _text(size: int) -> str:
    return f"{size / (1 << 20):.0f} MB" if size < 10 << 30 else f"{size / (1 << 30):.0f} GB"
