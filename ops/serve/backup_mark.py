"""Marks a backup in the running store: the supervisor does it when `moldau backup` asks.

Everything else of a backup is files, which the command reads itself (`ops/backup/`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from moldau.broker.errors import StoreFault

if TYPE_CHECKING:
    from moldau.broker.store.backup import Mark
    from moldau.ops.serve.embedded_store import EmbeddedStore

EXTERNAL = (
    "the store is a Redis of your own, which moldau does not copy. Back it up as Redis is backed "
    "up: redis-cli --rdb FILE, its append-only directory, or the snapshots of your provider. Put "
    "a copy back only while no broker runs; offsets that were given out after it may then be given "
    "out again. Replicas with Sentinel lose less than any copy"
)


async def mark_backup(store: EmbeddedStore | None) -> dict[str, Any]:
    """Write the mark; answers with it, the directories to copy, and the state of their disk."""
    if store is None:
        return {"error": EXTERNAL}
    try:
        mark = await asyncio.to_thread(_mark, store.url)
        store_id = store.store_id.file.read_text()
    except (StoreFault, OSError) as fault:
        return {"error": f"the store cannot be marked now: {fault}"}
    return {
        "mark": msgspec.to_builtins(mark),
        "store_id": store_id,
        "data_dir": str(store.store_id.file.parent),
        "append_only": str(store.append_only),
        "disk": store.guard.facts,
    }


def _mark(url: str) -> Mark:
    # Imported here: redis-py takes a while, and the supervisor starts without it.
    from moldau.broker.store.backup import BackupStore

    with BackupStore(url) as store:
        return store.mark()
