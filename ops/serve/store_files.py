"""The files of the embedded store: syncs and rewrites its append-only file, rotates its log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker.errors import StoreFault
from moldau.broker.logging_setup import LimitedLog
from moldau.broker.store.append_only import sync_files, written_sizes

if TYPE_CHECKING:
    from moldau.broker.store.blocking import BlockingStore

logger = logging.getLogger("moldau.store")
limited = LimitedLog(logger)

SYNC_INTERVAL_S = 1.0
LOOK_INTERVAL_S, LOOK_IF_SHORT_S = 10.0, 1.0
AFTER_FAILURE_S, AFTER_FAILURE_IF_SHORT_S = 300.0, 30.0
MAX_LOG_BYTES = 10 << 20  # the file before it is kept beside it
LOG_INTERVAL_S = 60.0
MIN_REWRITTEN_BYTES = 256 << 20  # a smaller file is loaded in a second or two


class Disk(Protocol):
    """The part of disk_guard.py that rewrites need."""

    def room_for_copies(self) -> int: ...
    @property
    def is_short(self) -> bool: ...
    async def look(self) -> None: ...


async def sync_every_second(directory: Path) -> None:
    """Force appended data to disk once a second, until cancelled."""
    synced: dict[str, int] = {}
    while True:
        await asyncio.sleep(SYNC_INTERVAL_S)
        try:
            sizes = written_sizes(directory)
            grown = [name for name, size in sizes.items() if synced.get(name) != size]
            if grown:
                await asyncio.to_thread(sync_files, directory, grown)
                synced = sizes
        except OSError as fault:
            # The server goes on; acknowledged writes may not be on disk.
            limited.warning(
                "sync", "the append-only file cannot be forced to disk: %s", fault.strerror
            )


async def rewrite_when_worth_it(url: str, disk: Disk) -> None:
    """Rewrite the file whenever most of it has become obsolete, until cancelled.

    The server would do it whenever the file has doubled. A log that only grows would then be
    copied again and again for nothing, by a fork that costs its writers latency meanwhile. When
    the disk is short of room a small gain is worth it; a copy that does not fit never is.
    """
    clock = asyncio.get_running_loop().time
    tried_at = clock() - AFTER_FAILURE_S
    with await asyncio.to_thread(_open_store, url) as store:
        while True:
            await asyncio.sleep(LOOK_IF_SHORT_S if disk.is_short else LOOK_INTERVAL_S)
            try:
                info = await asyncio.to_thread(store.persistence)
                has_failed = info["aof_last_bgrewrite_status"] != "ok"  # a full disk, for example
                pause = AFTER_FAILURE_IF_SHORT_S if disk.is_short else AFTER_FAILURE_S
                waits = has_failed and clock() - tried_at < pause
                room = disk.room_for_copies()
                if not waits and is_worth_rewriting(info, room=room, is_short=disk.is_short):
                    logger.info("rewriting the store's append-only file, to take less space")
                    tried_at = clock()
                    await asyncio.to_thread(store.rewrite_append_only_file)
                    await disk.look()  # a new part of the file is being written now
            except StoreFault as fault:  # it is restarting or busy
                logger.debug("cannot read the append-only file: %s", fault)


async def rotate_log(log: Path) -> None:
    """Keep the server's log and the one before it, until cancelled."""
    while True:
        rotate_if_large(log)
        await asyncio.sleep(LOG_INTERVAL_S)


def rotate_if_large(log: Path, most: int = MAX_LOG_BYTES) -> None:
    """The server opens its log for every line, so the file can be renamed at any time."""
    try:
        if log.stat().st_size > most:
            log.replace(log.with_name(f"{log.name}.1"))
    except FileNotFoundError:
        pass
    except OSError as fault:
        limited.warning("log", "%s cannot be renamed: %s", log, fault.strerror)


def _open_store(url: str) -> BlockingStore:
    from moldau.broker.store.blocking import (
        BlockingStore,  # redis-py takes a while: not while starting
    )

    return BlockingStore(url)


def remove_leftovers(files: Path) -> None:
    """Remove what a server left that was killed during a rewrite. Only while none runs."""
    for path in files.rglob("temp-*"):
        if path.suffix in (".aof", ".rdb") and path.is_file():
            path.unlink(missing_ok=True)


def is_worth_rewriting(found: Mapping[str, Any], *, room: int, is_short: bool = False) -> bool:
    """Is more than half of the file obsolete, by `INFO`: no longer in memory? A fifth will do when
    the disk `is_short` of room. The copy has to fit into `room`."""
    size, memory = int(found.get("aof_current_size", 0)), int(found["used_memory"])
    copied = int(found.get("used_memory_dataset", memory))  # without the buffers of connections
    if found.get("aof_rewrite_in_progress") or found.get("loading") or copied > room:
        return False
    if is_short:
        return 4 * size > 5 * copied
    return size >= MIN_REWRITTEN_BYTES and size > 2 * memory
