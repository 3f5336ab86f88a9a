"""The cleaned part of a compacted log: the commands that write it and switch to it.

A stream only grows at its end, so the records that survive compaction are written to a stream of
their own, a *generation*, which replaces the beginning of the log in one step. Every attempt gets a
unique number: a worker that slept past the end of its lease writes to a stream that no longer
exists, or fails the switch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from moldau.broker.store import keys
from moldau.broker.store.pipe import Pipe, resolve, within
from moldau.broker.store.scripts import script
from moldau.broker.store.stream_commands import create_empty
from moldau.broker.store.streams import CleanPart, append_command, append_prefix
from moldau.broker.wire.batch import Buffer

TIMEOUT = 30.0  # seconds for a reply: no client waits for a pass

_ALLOCATE = script("clean_allocate")
_SWITCH = script("clean_switch")
_RENEW = script("lease_renew")
_RELEASE = script("lease_release")


_encode = msgspec.msgpack.Encoder().encode


class Cleaned:
    """Writes generations. Large entries use the bulk pipe, the rest the control pipe."""

    def __init__(self, bulk: Pipe, control: Pipe) -> None:
        self._bulk = bulk
        self._control = control

    async def _call(self, *words: bytes | str | int) -> Any:
        return await self._control.ask(*words, within_s=TIMEOUT)

    # --- the lease: one pass at a time ---

    async def take_lease(self, key: bytes, lease_owner: bytes, milliseconds: int) -> bool:
        words = (keys.cleaner(key), lease_owner, "NX", "PX", milliseconds)
        return bool(await self._call("SET", *words))

    async def renew_lease(self, key: bytes, lease_owner: bytes, milliseconds: int) -> bool:
        words = (keys.cleaner(key), lease_owner, milliseconds)
        return bool(await self._call("EVAL", _RENEW, 1, *words))

    async def release_lease(self, key: bytes, lease_owner: bytes) -> None:
        await self._call("EVAL", _RELEASE, 1, keys.cleaner(key), lease_owner)

    # --- generations ---

    async def begin(self, key: bytes) -> int:
        """Create an empty stream for a new generation; 0: the log was deleted."""
        generation: int = await self._call("EVAL", _ALLOCATE, 1, keys.state(key))
        if not generation:
            return 0
        name = keys.clean(key, generation)
        await create_empty(self._control, name)
        # A deletion removes the log before its generations: it finds this one, or we notice here.
        if not await self._call("EXISTS", key):
            await self.drop(key, generation)
            return 0
        return generation

    async def append(
        self, key: bytes, generation: int, base: int, parts: list[Buffer], size: int
    ) -> bool:
        """Add an entry. False: the generation has been removed."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        prefix = append_prefix(keys.clean(key, generation))
        self._bulk.send(append_command(prefix, base, parts, size, b""), partial(resolve, future))
        return await within(TIMEOUT, future) is not None

    async def index(
        self, key: bytes, generation: int, points: Iterable[tuple[int, int, int]]
    ) -> None:
        """Save the time index of a generation: (running maximum of timestamps, offset, bytes)."""
        words = [word for newest, offset, size in points for word in (newest, f"{offset}:{size}")]
        if words:
            await self._call("ZADD", keys.times(keys.clean(key, generation)), *words)

    async def switch(
        self, key: bytes, old: CleanPart, start: int, new: CleanPart, start_bytes: int
    ) -> bool:
        """Replace `old` by `new`. False: the generation or the log start has changed, or `new` is
        incomplete."""
        names = (keys.state(key), keys.clean(key, new.generation))
        words = (old.generation, start, new.end, new.generation, _encode(new), start_bytes)
        return bool(await self._call("EVAL", _SWITCH, 2, *names, *words, new.entries))

    async def drop(self, key: bytes, generation: int) -> None:
        for name in keys.generation(key, generation):
            await self._call("UNLINK", name)

    async def drop_leftovers(self, key: bytes, current: CleanPart, own: int = 0) -> None:
        """Remove what failed passes left. Only the holder of the lease may do that."""
        allocated = int(await self._call("HGET", keys.state(key), "clean_allocated") or 0)
        leftover = {current.previous, *range(current.generation + 1, allocated + 1)}
        for generation in sorted(leftover - {0, current.generation, own}):
            await self.drop(key, generation)
