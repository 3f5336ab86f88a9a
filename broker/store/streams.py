"""The commands of partition logs: append, read, trim, and what is kept beside a log.

Entries are `(base offset, blob, nonce)`; the caller never sees an id or a field name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from broker.errors import StoreFault, StoreRefused
from broker.store import keys, resp
from broker.store.cleaned import CleanPart, decode_part
from broker.store.pipe import Done, Pipe, within
from broker.wire.batch import Buffer

CONTROL_TIMEOUT = 15.0
LONGEST_WAIT_MS = 5_000  # for replicas: whoever waits behind should not time out too
# Entries freed in one command: 1,000 take the store about a millisecond.
TRIM_STEP = 1000
INDEX_PAGE = 512

# The state of a log is there from its creation to its deletion, so no script brings it back.
# A full store must take these two all the same: retention is what makes room in it.
#
# A log's start only ever moves up, whoever moves it and in whatever order that arrives; and its
# bytes are those of the generation they were counted in.
_RAISE_START = (
    "#!lua flags=allow-oom\n"
    "local state = redis.call('HMGET', KEYS[1], 'start', 'clean_current') "
    "if not state[1] or tonumber(state[2] or '0') ~= tonumber(ARGV[3]) then return -1 end "
    "if tonumber(ARGV[1]) > tonumber(state[1]) then "
    "redis.call('HSET', KEYS[1], 'start', ARGV[1], 'start_bytes', ARGV[2]) return 1 end return 0"
)
# A snapshot of the fold only ever moves on.
_RAISE_SNAPSHOT = (
    "#!lua flags=allow-oom\n"
    "local state = redis.call('HMGET', KEYS[1], 'start', 'snapshot_at') "
    "if state[1] and tonumber(ARGV[1]) > tonumber(state[2] or '-1') then "
    "redis.call('HSET', KEYS[1], 'snapshot_at', ARGV[1], 'snapshot', ARGV[2]) return 1 end return 0"
)


class Entry(NamedTuple):
    base: int
    blob: bytes
    nonce: bytes


class SavedStart(NamedTuple):
    """Where a log begins and what of it is cleaned: read at once, so they fit each other."""

    start: int
    start_bytes: int
    clean: CleanPart


class SavedState(NamedTuple):
    """What stands beside a log: see keys.py."""

    start: int
    start_bytes: int
    clean: CleanPart
    snapshot: bytes | None


StartDone = Callable[[SavedStart | StoreFault], None]
EntriesDone = Callable[[list[Entry] | StoreFault], None]


def _entries(reply: list[Any]) -> list[Entry]:
    return [
        Entry(int(entry_id[:-2]), fields[1], fields[3] if len(fields) > 2 else b"")
        for entry_id, fields in reply
        if fields is not None
    ]


class Streams:
    """Logs in Redis. Bulk appends, replicated appends, reads and control each have their pipe."""

    def __init__(self, bulk: Pipe, replicated: Pipe, reads: Pipe, control: Pipe) -> None:
        self._bulk = bulk
        self._replicated = replicated
        self._reads = reads
        self._control = control

    async def wait_up(self) -> None:
        await self._bulk.wait_up()
        await self._reads.wait_up()

    # --- appending ---

    def append(
        self,
        prefix: bytes,
        offset: int,
        parts: list[Buffer],
        size: int,
        nonce: bytes,
        wake: bytes | None,
        done: Done,
    ) -> None:
        """Compare-and-append: `done` gets the id, None (no such log) or a StoreFault."""
        self._bulk.send(resp.append(prefix, offset, parts, size, nonce), done, size)
        if wake is not None:
            # In the same write, so that the leader's readers hear of it whatever happens to us.
            self._bulk.send((wake,), _ignore)

    def wake(self, wake: bytes) -> None:
        """A wake-up by itself: see `append`."""
        self._bulk.send((wake,), _ignore)

    def wait_replicas(self, replicas: int, timeout_ms: int, done: Callable[[int], None]) -> None:
        """How many replicas have everything written so far; waits for `replicas` of them.

        WAIT is about what its own connection wrote last, so it writes: replication is in order.
        It holds up its connection, hence one of its own.
        """
        self._replicated.send((resp.command("SET", keys.BARRIER, 1),), _ignore)
        wait = resp.command("WAIT", replicas, min(timeout_ms, LONGEST_WAIT_MS))
        self._replicated.send((wait,), lambda got: done(got if isinstance(got, int) else -1))

    # --- reading ---

    def read(self, key: bytes, offset: int, count: int, done: EntriesDone) -> None:
        """The entry that contains the offset and up to `count` after it, in one round trip."""
        first: list[Any] = []

        def second(reply: Any) -> None:
            if isinstance(first[0], StoreFault):
                done(first[0])
            elif isinstance(reply, StoreFault):
                done(reply)
            else:
                done(_entries(first[0]) + _entries(reply))

        self._reads.send((resp.read_back(key, offset),), first.append)
        self._reads.send((resp.read_on(key, offset + 1, count),), second)

    def read_on(self, key: bytes, offset: int, count: int, done: EntriesDone) -> None:
        """Up to `count` entries that begin at the offset or after it."""

        def finish(reply: Any) -> None:
            done(reply if isinstance(reply, StoreFault) else _entries(reply))

        self._reads.send((resp.read_on(key, offset, count),), finish)

    async def last_entry(self, key: bytes) -> Entry | None:
        reply = await self._read_call("XREVRANGE", key, "+", "-", "COUNT", 1)
        entries = _entries(reply)
        return entries[0] if entries else None

    async def entries_at(self, key: bytes, offset: int, count: int) -> list[Entry]:
        """`read`, for those who can wait: the entry that contains the offset and those after."""
        future: asyncio.Future[list[Entry]] = asyncio.get_running_loop().create_future()

        def finish(got: list[Entry] | StoreFault) -> None:
            if future.done():
                return
            if isinstance(got, StoreFault):
                future.set_exception(got)
            else:
                future.set_result(got)

        self.read(key, offset, count, finish)
        entries: list[Entry] = await within(CONTROL_TIMEOUT, future)
        return entries

    async def first_entries(self, key: bytes, offset: int, count: int) -> list[Entry]:
        return _entries(await self._read_call("XRANGE", key, b"%d-1" % offset, "+", "COUNT", count))

    async def _read_call(self, *words: bytes | str | int) -> Any:
        return await within(CONTROL_TIMEOUT, self._reads.call(*words))

    async def _control_call(self, *words: bytes | str | int | float) -> Any:
        return await within(CONTROL_TIMEOUT, self._control.call(*words))

    # --- a log's life ---

    async def create(self, key: bytes) -> None:
        """An empty stream: XADD NOMKSTREAM needs it, and only a group can make one."""
        try:
            await self._control_call("XGROUP", "CREATE", key, "moldau-create", "$", "MKSTREAM")
        except StoreRefused as fault:
            if not str(fault).startswith("BUSYGROUP"):
                raise
        await self._control_call("XGROUP", "DESTROY", key, "moldau-create")
        await self._control_call("HSETNX", keys.state(key), "start", 0)

    async def remove(self, key: bytes) -> None:
        """Everything of a partition; one key a command, so that a Redis cluster would do."""
        # The log first: a compaction that is under way looks whether it is still there.
        await self._control_call("UNLINK", key)
        saved, allocated = await self._control_call(
            "HMGET", keys.state(key), "clean", "clean_allocated"
        )
        part = decode_part(saved)
        generations = {part.previous, *range(part.generation, int(allocated or 0) + 1)} - {0}
        for number in sorted(generations):
            for name in keys.generation(key, number):
                await self._control_call("UNLINK", name)
        for name in (keys.state(key), keys.times(key)):
            await self._control_call("UNLINK", name)

    async def exists(self, key: bytes) -> bool:
        return bool(await self._read_call("EXISTS", key))

    async def saved_state(self, key: bytes) -> SavedState:
        *start, snapshot = await self._read_call("HMGET", keys.state(key), *_START, "snapshot")
        return SavedState(*_saved_start(start), snapshot)

    def saved_start(self, key: bytes, done: StartDone) -> None:
        def finish(reply: Any) -> None:
            done(reply if isinstance(reply, StoreFault) else _saved_start(reply))

        self._reads.send((resp.command("HMGET", keys.state(key), *_START),), finish)

    async def save_snapshot(self, key: bytes, offset: int, snapshot: bytes) -> None:
        await self._control_call("EVAL", _RAISE_SNAPSHOT, 1, keys.state(key), offset, snapshot)

    async def snapshot_at(self, key: bytes) -> int:
        """The offset up to which a snapshot covers the log, -1 without one."""
        return int(await self._control_call("HGET", keys.state(key), "snapshot_at") or -1)

    async def raise_start(self, key: bytes, start: int, start_bytes: int, generation: int) -> bool:
        """False when the bytes were counted in a generation that is no longer current."""
        words = (start, start_bytes, generation)
        outcome: int = await self._control_call("EVAL", _RAISE_START, 1, keys.state(key), *words)
        return outcome >= 0

    async def trim(self, key: bytes, first_kept: int) -> int:
        """Remove the entries below `first_kept` (a base offset), a bounded step at a time."""
        removed = 0
        while True:
            step: int = await self._control_call(
                "XTRIM", key, "MINID", "~", b"%d-1" % first_kept, "LIMIT", TRIM_STEP
            )
            removed += step
            if step == 0:
                break
        # `~` stops at a node's edge: what is left there is less than one node.
        rest: int = await self._control_call("XTRIM", key, "MINID", "=", b"%d-1" % first_kept)
        return removed + rest

    # --- the sparse time index: score is the running maximum of timestamps ---

    def index(self, key: bytes, max_timestamp: int, offset: int, size: int) -> None:
        """Note that up to `offset` no timestamp is above `max_timestamp`; `size` bytes so far."""
        words = ("ZADD", keys.times(key), max_timestamp, f"{offset}:{size}")
        self._control.send((resp.command(*words),), _ignore)

    async def index_before(self, key: bytes, timestamp: int) -> tuple[int, int] | None:
        """The last point (offset, bytes) up to which every timestamp is below `timestamp`."""
        reply = await self._read_call(
            "ZREVRANGEBYSCORE", keys.times(key), f"({timestamp}", "-inf", "LIMIT", 0, 1
        )
        return _point(reply[0]) if reply else None

    async def index_points(self, key: bytes, page: int = 0) -> list[tuple[int, int]]:
        """A page of points (offset, bytes), by time: oldest first but where times are equal."""
        first = page * INDEX_PAGE
        reply = await self._read_call("ZRANGE", keys.times(key), first, first + INDEX_PAGE - 1)
        return [_point(member) for member in reply]

    async def drop_index(self, key: bytes, points: list[tuple[int, int]]) -> None:
        if points:
            await self._control_call(
                "ZREM", keys.times(key), *(f"{offset}:{size}" for offset, size in points)
            )


_START = ("start", "start_bytes", "clean")


def _saved_start(reply: list[bytes | None]) -> SavedStart:
    start, start_bytes, clean = reply
    return SavedStart(int(start or 0), int(start_bytes or 0), decode_part(clean))


def _point(member: bytes) -> tuple[int, int]:
    offset, _, size = member.partition(b":")
    return int(offset), int(size)


def _ignore(reply: Any) -> None:
    """A hint (a wake-up, an index point): losing one costs time, never data."""
