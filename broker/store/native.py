"""The commands of native topics: entries with fields, Redis consumer groups, and the library of
functions that does in one step what must be one (native_library.lua).

Ids go in and out as bytes; the caller never sees how Redis lays out its replies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from broker.errors import ErrorCode, KafkaError, StoreFault, StoreRefused
from broker.store import keys, native_steps
from broker.store.native_steps import EntriesDone, GroupReadDone, GroupSteps, read_entries
from broker.store.pipe import Pipe, within
from broker.store.resp import command
from broker.store.streams import CONTROL_TIMEOUT

log = logging.getLogger("moldau.store")

MAX_WORDS = 7_000  # of one record: what a Lua call takes
TRIM_STEP = 1000
SURVEY_STEP = 200  # entries of any size, which a function has in its hands at a time

RawEntries = native_steps.RawEntries
Expected = native_steps.Expected


class Bounds(NamedTuple):
    length: int
    first: bytes  # id of the first entry; empty when there is none
    last: bytes  # the last id ever
    marks: int
    start: int  # nothing below this offset, as far as it was us who removed it


class GroupFacts(NamedTuple):
    """What Redis knows of a consumer group of one stream."""

    last_delivered: bytes
    oldest_pending: bytes | None


AppendDone = Callable[[tuple[bytes, ...] | StoreFault], None]
BoundsDone = Callable[[Bounds | StoreFault], None]


def is_busy_group(fault: object) -> bool:
    return isinstance(fault, StoreRefused) and str(fault).startswith("BUSYGROUP")


def is_no_group(fault: object) -> bool:
    return isinstance(fault, StoreRefused) and str(fault).startswith("NOGROUP")


def _is_unknown_function(fault: object) -> bool:
    return isinstance(fault, StoreRefused) and "Function not found" in str(fault)


class NativeStreams:
    def __init__(self, bulk: Pipe, reads: Pipe, control: Pipe, groups: Pipe) -> None:
        self._bulk = bulk
        self._reads = reads
        self._control = control
        self._groups = groups
        self._loaded = False
        self._loading: asyncio.Task[None] | None = None  # kept, or nobody would

    # --- the library ---

    @property
    def has_library(self) -> bool:
        """As far as is known: it is put there by every worker, so that it is of its version."""
        return self._loaded

    async def ensure_library(self) -> None:
        """Put the functions into the store, unless this worker has done so."""
        if not self._loaded:
            text = files("broker.store").joinpath("native_library.lua").read_text()
            await self._call("FUNCTION", "LOAD", "REPLACE", text)
            self._loaded = True

    def _hinted(self, reply: Any) -> None:
        """Losing one costs a second delivery, which is allowed."""
        if isinstance(self._noticed(reply), StoreFault):
            log.warning("a group's position could not be set: %s", reply)

    def _noticed(self, reply: Any) -> Any:
        """Somebody may have removed the functions: what asked for them has failed, what comes next
        finds them."""
        if _is_unknown_function(reply) and self._loaded:
            self._loaded = False
            self._loading = asyncio.get_running_loop().create_task(self._load_again())
        return reply

    async def _load_again(self) -> None:
        try:
            await self.ensure_library()
        except StoreFault as fault:
            log.warning("the functions of native topics are gone from the store: %s", fault)

    async def _call(self, *words: bytes | str | int) -> Any:
        return await within(CONTROL_TIMEOUT, self._control.call(*words))

    async def _function(self, name: str, keys_: Sequence[bytes], *words: bytes | str | int) -> Any:
        await self.ensure_library()
        try:
            return await self._call("FCALL", name, len(keys_), *keys_, *words)
        except StoreRefused as fault:
            self._noticed(fault)
            if self._loaded:
                raise
        await self.ensure_library()
        return await self._call("FCALL", name, len(keys_), *keys_, *words)

    # --- a log's life ---

    async def create(self, stream: bytes, base: bytes) -> None:
        """The stream, empty if it is not there, and what stands beside it."""
        await self.ensure_library()
        kind: bytes = await self._call("TYPE", stream)
        if kind == b"none":
            try:
                await self._call("XGROUP", "CREATE", stream, "moldau-create", "$", "MKSTREAM")
            except StoreRefused as fault:
                if not is_busy_group(fault):  # somebody else creates it at this moment
                    raise
            await self.destroy_group(stream, "moldau-create")
        elif kind != b"stream":
            raise _no_stream(stream, kind)
        await self._call("HSETNX", keys.state(base), "native", 1)

    async def remove(self, stream: bytes | None, base: bytes) -> None:
        """What stands beside the stream first: nothing is appended without it."""
        await self._call("UNLINK", keys.state(base), keys.marks(base))
        if stream is not None:
            await self._call("UNLINK", stream)

    async def survey(self, stream: bytes) -> int | None:
        """The largest sequence of any id in the stream, 0 when it is empty; None: no such key."""
        kind: bytes = await self._call("TYPE", stream)
        if kind == b"none":
            return None
        if kind != b"stream":
            raise _no_stream(stream, kind)
        largest, at = 0, b"-"
        while at:
            at, found, _ = await self._function("moldau_survey", [stream], at, SURVEY_STEP)
            largest = max(largest, int(found))
        return largest

    async def last_id(self, stream: bytes) -> bytes:
        """The last id ever; 0-0 of a key that is not there or no stream."""
        if await self._call("TYPE", stream) != b"stream":
            return b"0-0"
        beside = [stream, keys.marks(stream), keys.state(stream)]
        found: bytes = (await self._function("moldau_bounds", beside))[2]
        return found

    # --- appending ---

    def append(
        self, stream: bytes, base: bytes, words: Iterable[bytes | int], done: AppendDone
    ) -> None:
        """One batch; see `moldau_append` for words and outcomes."""

        def finish(reply: Any) -> None:
            self._noticed(reply)
            done(reply if isinstance(reply, StoreFault) else tuple(reply))

        packed = command("FCALL", "moldau_append", 2, stream, keys.state(base), *words)
        self._bulk.send((packed,), finish)

    # --- reading ---

    def bounds(self, stream: bytes, base: bytes, done: BoundsDone) -> None:
        def finish(reply: Any) -> None:
            self._noticed(reply)
            if isinstance(reply, StoreFault):
                done(reply)
            else:
                length, first, last, marks, start = reply
                done(Bounds(length, first, last, marks, int(start)))

        words = ("FCALL_RO", "moldau_bounds", 3, stream, keys.marks(base), keys.state(base))
        self._reads.send((command(*words),), finish)

    def read(
        self, stream: bytes, base: bytes, first: bytes, count: int, limit: int, done: EntriesDone
    ) -> None:
        """Entries up to a count, or until they take `limit` bytes; and how many marks there are:
        without all of them `first` may be wrong."""
        read_entries(self._reads, stream, keys.marks(base), first, count, limit, done)

    async def entries(self, stream: bytes, first: bytes, count: int) -> RawEntries:
        words = ("XRANGE", stream, first, "+", "COUNT", count)
        return _entries(await within(CONTROL_TIMEOUT, self._reads.call(*words)))

    async def newest(self, stream: bytes, count: int) -> RawEntries:
        words = ("XREVRANGE", stream, "+", "-", "COUNT", count)
        return _entries(await within(CONTROL_TIMEOUT, self._reads.call(*words)))

    async def last_before(self, stream: bytes, entry_id: bytes) -> bytes | None:
        """The id of the last entry below an id."""
        words = ("XREVRANGE", stream, b"(" + entry_id, "-", "COUNT", 1)
        found = _entries(await within(CONTROL_TIMEOUT, self._reads.call(*words)))
        return found[0][0] if found else None

    async def set_start(self, base: bytes, offset: int) -> None:
        await self._call("HSET", keys.state(base), "start", offset)

    async def memory(self, stream: bytes) -> int:
        """Bytes the stream takes in the store, about."""
        return int(await self._call("MEMORY", "USAGE", stream) or 0)

    # --- marks ---

    async def marks(self, base: bytes) -> list[bytes]:
        found: list[bytes] = await self._call("ZRANGE", keys.marks(base), 0, -1)
        return found

    async def add_marks(self, base: bytes, marks: Iterable[bytes]) -> None:
        words: list[bytes | int] = []
        for mark in marks:
            words += (0, mark)
        await self._call("ZADD", keys.marks(base), *words)

    # --- groups ---

    def create_group(
        self, stream: bytes, group: str, after: bytes, done: Callable[[Any], None]
    ) -> None:
        words = ("XGROUP", "CREATE", stream, group, after, "MKSTREAM")
        self._reads.send((command(*words),), done)

    def move_group(
        self, stream: bytes, group: str, first: bytes, before: bytes, done: Callable[[Any], None]
    ) -> None:
        """Let it go on from an id, unless it would anyway."""
        words = ("FCALL", "moldau_move", 1, stream, group, first, before)
        self._reads.send((command(*words),), lambda reply: done(self._noticed(reply)))

    def take_over(
        self, stream: bytes, group: str, member: str, done: Callable[[Any], None]
    ) -> None:
        words = ("FCALL", "moldau_take_over", 1, stream, group, member)
        self._reads.send((command(*words),), lambda reply: done(self._noticed(reply)))

    def read_group(
        self, stream: bytes, base: bytes, group: str, member: str,
        first: bytes, count: int, limit: int, done: GroupReadDone,
    ) -> None:  # fmt: skip
        """As `read`, marked as read by a member; and what should have come first."""

        def noticed(read: RawEntries | StoreFault, expected: Expected | StoreFault) -> None:
            self._noticed(expected)
            done(read, expected)

        def give_back(after: bytes, ids: list[bytes]) -> None:
            self.give_back(stream, group, after, ids)

        where = self._reads, stream, keys.marks(base)
        GroupSteps(*where, group, member, count, limit, give_back, noticed).start(first)

    def give_back(self, stream: bytes, group: str, after: bytes, ids: Sequence[bytes]) -> None:
        """Entries that were read and are not delivered after all: as if they had not been."""
        packed = command("FCALL", "moldau_give_back", 1, stream, group, after, *ids)
        self._reads.send((packed,), self._hinted)

    def acknowledge(self, stream: bytes, group: str, last: bytes, *, is_read: bool) -> None:
        """Everything pending up to an id; goes out with what else this turn writes for groups.

        Of a group that nobody reads with, consumers that have nothing pending then go too.
        """

        def finish(reply: Any) -> None:
            self._noticed(reply)
            if isinstance(reply, StoreFault):
                # The commit stands; what is pending is acknowledged with the next one.
                log.warning("group %s: acknowledging in %r failed: %s", group, stream, reply)

        words = ("FCALL", "moldau_acknowledge", 1, stream, group, last, int(is_read))
        self._groups.send((command(*words),), finish)

    async def remove_consumers(self, stream: bytes, group: str, members: Iterable[str]) -> int:
        """Of these members those that have nothing pending; how many are left."""
        left: int = await self._function("moldau_remove_consumers", [stream], group, *members)
        return left

    async def group_facts(self, stream: bytes, group: str) -> GroupFacts | None:
        """None when the stream has no such group."""
        try:
            found = await self._call("XINFO", "GROUPS", stream)
        except StoreRefused as fault:
            if "no such key" not in str(fault):
                raise  # who is told that there is none begins anew
            return None
        for one in found:
            facts = dict(zip(one[::2], one[1::2], strict=True))
            if facts[b"name"] == group.encode():
                pending = await self._call("XPENDING", stream, group)
                return GroupFacts(facts[b"last-delivered-id"], pending[1])
        return None

    async def destroy_group(self, stream: bytes, group: str) -> None:
        try:
            await self._call("XGROUP", "DESTROY", stream, group)
        except StoreRefused as fault:
            if "requires the key to exist" not in str(fault):
                raise

    # --- who reads ---

    async def all_members(self) -> dict[str, bytes]:
        found = await self._call("HGETALL", keys.MEMBERS)
        pairs = zip(found[::2], found[1::2], strict=True)
        return {group.decode(): data for group, data in pairs}

    async def members(self, group: str) -> bytes | None:
        found: bytes | None = await self._call("HGET", keys.MEMBERS, group)
        return found

    async def save_members(self, group: str, data: bytes | None) -> None:
        if data is None:
            await self._call("HDEL", keys.MEMBERS, group)
        else:
            await self._call("HSET", keys.MEMBERS, group, data)

    # --- what is old ---

    async def length(self, stream: bytes) -> int:
        return int(await self._call("XLEN", stream))

    async def trim_before(self, stream: bytes, first_kept: bytes) -> int:
        removed = 0
        while True:
            step: int = await self._call(
                "XTRIM", stream, "MINID", "~", first_kept, "LIMIT", TRIM_STEP
            )
            removed += step
            if step == 0:
                break
        rest: int = await self._call("XTRIM", stream, "MINID", "=", first_kept)
        return removed + rest

    async def trim_to(self, stream: bytes, entries: int) -> int:
        removed = 0
        while True:
            step: int = await self._call(
                "XTRIM", stream, "MAXLEN", "~", entries, "LIMIT", TRIM_STEP
            )
            removed += step
            if step == 0:
                return removed

    async def producers(self, base: bytes) -> dict[bytes, bytes]:
        """Field -> what is saved of a producer: `epoch used;...`."""
        found = await self._call("HGETALL", keys.state(base))
        pairs = zip(found[::2], found[1::2], strict=True)
        return {name: value for name, value in pairs if name.startswith(b"p:")}

    async def forget_producers(self, base: bytes, names: Sequence[bytes]) -> None:
        await self._call("HDEL", keys.state(base), *names)


def _no_stream(key: bytes, kind: bytes) -> KafkaError:
    text = f"{key.decode('utf-8', 'replace')} is a {kind.decode()} in Redis, no stream"
    return KafkaError(ErrorCode.INVALID_CONFIG, text)


def _entries(reply: list[Any]) -> RawEntries:
    entries: RawEntries = reply  # pairs, as lists: nobody minds, and a copy would cost
    return entries
