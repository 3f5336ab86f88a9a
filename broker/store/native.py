"""The commands of native topics: entries with fields, and Redis consumer groups.

What must happen in one step is a function of the library (`native_library.lua`). Ids are bytes in
and out; callers never see the layout of Redis' replies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from moldau.broker.errors import Callback, ErrorCode, KafkaError, StoreFault, StoreRefused
from moldau.broker.store import keys, native_steps, stream_commands
from moldau.broker.store.native_library import NativeLibrary
from moldau.broker.store.native_steps import EntriesDone, GroupReadDone, GroupSteps, read_entries
from moldau.broker.store.pipe import Pipe, command, pairs

logger = logging.getLogger("moldau.store")

MAX_WORDS = 7_000  # of one record: the limit of arguments in a Lua call
SURVEY_STEP = 200  # entries of any size that a function reads at a time

RawEntries = native_steps.RawEntries
Expected = native_steps.Expected


class Bounds(NamedTuple):
    length: int
    first: bytes  # id of the first entry; empty: there is none
    last: bytes  # the last id that the stream ever had
    marks: int
    start: int  # the log start offset, if Moldau itself removed entries
    added: int  # how many entries were ever added


class StreamGroup(NamedTuple):
    """A Redis consumer group of one stream, as XINFO GROUPS shows it."""

    raw_name: bytes
    consumers: int
    pending: int
    last_delivered: bytes
    entries_read: int | None  # None: Redis does not know
    lag: int | None

    @property
    def name(self) -> str:
        return self.raw_name.decode("utf-8", "replace")


class GroupFacts(NamedTuple):
    """Where a Redis consumer group of one stream stands."""

    last_delivered: bytes
    oldest_pending: bytes | None


def is_no_group(fault: object) -> bool:
    return isinstance(fault, StoreRefused) and str(fault).startswith("NOGROUP")


class NativeStreams:
    def __init__(self, bulk: Pipe, reads: Pipe, control: Pipe, groups: Pipe) -> None:
        self._bulk = bulk
        self._reads = reads
        self._control = control
        self._groups = groups
        self._library = NativeLibrary(control)

    @property
    def has_library(self) -> bool:
        """Are the functions loaded, as far as is known?"""
        return self._library.is_loaded

    async def ensure_library(self) -> None:
        await self._library.ensure_loaded()

    # --- creating, removing, looking ---

    async def create(self, stream: bytes, base: bytes) -> None:
        """Create the stream, if there is none yet, and its state key."""
        await self.ensure_library()
        kind: bytes = await self._control.ask("TYPE", stream)
        if kind == b"none":
            try:
                await stream_commands.create_empty(self._control, stream)
            except StoreRefused as fault:
                if not stream_commands.is_missing_stream(fault):
                    raise
        elif kind != b"stream":
            raise _no_stream(stream, kind)
        await self._control.ask("HSETNX", keys.state(base), "native", 1)

    async def remove(self, stream: bytes | None, base: bytes) -> None:
        """Remove the topic: the state key first, as nothing is appended without it."""
        await self._control.ask("UNLINK", keys.state(base), keys.marks(base))
        if stream is not None:
            await self._control.ask("UNLINK", stream)

    async def survey(self, stream: bytes) -> int | None:
        """The largest sequence of any entry id, 0 for an empty stream, None if there is no key."""
        kind: bytes = await self._control.ask("TYPE", stream)
        if kind == b"none":
            return None
        if kind != b"stream":
            raise _no_stream(stream, kind)
        largest, at = 0, b"-"
        while at:
            at, found, _ = await self._library.call("moldau_survey", [stream], at, SURVEY_STEP)
            largest = max(largest, int(found))
        return largest

    async def last_id(self, stream: bytes) -> bytes:
        """The last id that the stream ever had; 0-0: there is no such key, or it is no stream."""
        if await self._control.ask("TYPE", stream) != b"stream":
            return b"0-0"
        return (await self.facts_of(stream)).last

    # --- appending ---

    def append(
        self,
        stream: bytes,
        base: bytes,
        words: Iterable[bytes | int],
        done: Callback[tuple[bytes, ...]],
    ) -> None:
        """Append one batch; see `append` in the library for words and outcomes."""

        def finish(reply: Any) -> None:
            self._library.check(reply)
            done(reply if isinstance(reply, StoreFault) else tuple(reply))

        packed = command("FCALL", "moldau_append", 2, stream, keys.state(base), *words)
        self._bulk.send((packed,), finish)

    # --- reading ---

    def bounds(self, stream: bytes, base: bytes, done: Callback[Bounds]) -> None:
        def finish(reply: Any) -> None:
            self._library.check(reply)
            if isinstance(reply, StoreFault):
                done(reply)
            else:
                done(_bounds(reply))

        words = ("FCALL_RO", "moldau_bounds", 3, stream, keys.marks(base), keys.state(base))
        self._reads.send((command(*words),), finish)

    def read(
        self, stream: bytes, base: bytes, first: bytes, count: int, limit: int, done: EntriesDone
    ) -> None:
        """Up to `count` entries, or until they take `limit` bytes; and the number of marks: unless
        the caller knows all of them, `first` may be wrong."""
        read_entries(self._reads, stream, keys.marks(base), first, count, limit, done)

    async def entries(self, stream: bytes, first: bytes, count: int) -> RawEntries:
        words = ("XRANGE", stream, first, "+", "COUNT", count)
        return _entries(await self._reads.ask(*words))

    async def newest(self, stream: bytes, count: int) -> RawEntries:
        words = ("XREVRANGE", stream, "+", "-", "COUNT", count)
        return _entries(await self._reads.ask(*words))

    async def last_before(self, stream: bytes, entry_id: bytes) -> bytes | None:
        """The id of the last entry below an id."""
        words = ("XREVRANGE", stream, b"(" + entry_id, "-", "COUNT", 1)
        found = _entries(await self._reads.ask(*words))
        return found[0][0] if found else None

    async def set_start(self, base: bytes, offset: int) -> None:
        await self._control.ask("HSET", keys.state(base), "start", offset)

    async def memory(self, stream: bytes) -> int:
        """About how many bytes of memory the stream takes."""
        return int(await self._control.ask("MEMORY", "USAGE", stream) or 0)

    # --- marks ---

    async def marks(self, base: bytes) -> list[bytes]:
        found: list[bytes] = await self._control.ask("ZRANGE", keys.marks(base), 0, -1)
        return found

    async def add_marks(self, base: bytes, marks: Iterable[bytes]) -> None:
        words: list[bytes | int] = []
        for mark in marks:
            words += (0, mark)
        await self._control.ask("ZADD", keys.marks(base), *words)

    # --- Redis consumer groups ---

    def create_group(
        self, stream: bytes, group: str, after: bytes, done: Callable[[Any], None]
    ) -> None:
        words = ("XGROUP", "CREATE", stream, group, after, "MKSTREAM")
        self._reads.send((command(*words),), done)

    def move_group(
        self, stream: bytes, group: str, first: bytes, before: bytes, done: Callable[[Any], None]
    ) -> None:
        """Move the group's position to an id, unless it is there already."""
        words = ("FCALL", "moldau_move", 1, stream, group, first, before)
        self._reads.send((command(*words),), lambda reply: done(self._library.check(reply)))

    def take_over(
        self, stream: bytes, group: str, member: str, done: Callable[[Any], None]
    ) -> None:
        words = ("FCALL", "moldau_take_over", 1, stream, group, member)
        self._reads.send((command(*words),), lambda reply: done(self._library.check(reply)))

    def read_group(
        self, stream: bytes, base: bytes, group: str, member: str,
        first: bytes, count: int, limit: int, done: GroupReadDone,
    ) -> None:  # fmt: skip
        """`read` by XREADGROUP for a member; and which entry should have come first."""

        def checked(read: RawEntries | StoreFault, expected: Expected | StoreFault) -> None:
            if isinstance(expected, StoreFault):
                self._library.check(expected)
            done(read, expected)

        def give_back(after: bytes, ids: list[bytes]) -> None:
            self.give_back(stream, group, after, ids)

        where = self._reads, stream, keys.marks(base)
        GroupSteps(*where, group, member, count, limit, give_back, checked).start(first)

    def give_back(self, stream: bytes, group: str, after: bytes, ids: Sequence[bytes]) -> None:
        """Undo the delivery of entries that were read and are not returned to the consumer."""
        packed = command("FCALL", "moldau_give_back", 1, stream, group, after, *ids)

        def finish(reply: Any) -> None:
            # A failure costs a second delivery, which is allowed.
            if isinstance(self._library.check(reply), StoreFault):
                logger.warning("group %s: giving entries back failed: %s", group, reply)

        self._reads.send((packed,), finish)

    def acknowledge(self, stream: bytes, group: str, last: bytes, *, is_read: bool) -> None:
        """Acknowledge everything pending up to an id, in the same write as this turn's commits.

        If no Kafka member reads (`is_read` False), consumers with nothing pending are removed too.
        """

        def finish(reply: Any) -> None:
            self._library.check(reply)
            if isinstance(reply, StoreFault):
                # The commit is valid; the next one acknowledges what is still pending.
                logger.warning("group %s: XACK in %r failed: %s", group, stream, reply)

        words = ("FCALL", "moldau_acknowledge", 1, stream, group, last, int(is_read))
        self._groups.send((command(*words),), finish)

    async def remove_consumers(self, stream: bytes, group: str, members: Iterable[str]) -> int:
        """Remove members that have nothing pending; returns how many are left."""
        left: int = await self._library.call("moldau_remove_consumers", [stream], group, *members)
        return left

    async def group_facts(self, stream: bytes, group: str) -> GroupFacts | None:
        """Where the group stands; None: the stream has no such group."""
        try:
            found = await self._control.ask("XINFO", "GROUPS", stream)
        except StoreRefused as fault:
            if "no such key" not in str(fault):
                raise  # "no such group" would make the reader start from scratch
            return None
        for one in found:
            facts = pairs(one)
            if facts[b"name"] == group.encode():
                pending = await self._control.ask("XPENDING", stream, group)
                return GroupFacts(facts[b"last-delivered-id"], pending[1])
        return None

    async def groups_of(self, stream: bytes) -> list[StreamGroup]:
        try:
            found = await self._control.ask("XINFO", "GROUPS", stream)
        except StoreRefused as fault:
            if "no such key" not in str(fault):
                raise
            return []
        return [_stream_group(pairs(one)) for one in found]

    async def facts_of(self, stream: bytes) -> Bounds:
        """The bounds of any stream; it need not be a topic's."""
        beside = [stream, keys.marks(stream), keys.state(stream)]
        return _bounds(await self._library.call("moldau_bounds", beside))

    async def newest_cut(self, stream: bytes, count: int, most: int) -> list[Any]:
        """Ids, fields (name, value, size of the value; the first ones, `most` bytes of each) and
        numbers of fields."""
        found: list[Any] = await self._library.call("moldau_peek", [stream], count, most)
        return found

    async def count_range(
        self, stream: bytes, first: bytes, last: bytes, most: int
    ) -> tuple[bytes, int]:
        """Count up to `most` entries. Returns where to continue (b"": nowhere), and the count."""
        following, count = await self._library.call("moldau_count", [stream], first, last, most)
        return following, int(count)

    async def destroy_group(self, stream: bytes, group: str) -> None:
        try:
            await self._control.ask("XGROUP", "DESTROY", stream, group)
        except StoreRefused as fault:
            if not stream_commands.is_missing_stream(fault):
                raise

    # --- members: who reads native topics in which group ---

    async def all_members(self) -> dict[str, bytes]:
        found = pairs(await self._control.ask("HGETALL", keys.MEMBERS))
        return {group.decode(): data for group, data in found.items()}

    async def members(self, group: str) -> bytes | None:
        found: bytes | None = await self._control.ask("HGET", keys.MEMBERS, group)
        return found

    async def save_members(self, group: str, data: bytes | None) -> None:
        if data is None:
            await self._control.ask("HDEL", keys.MEMBERS, group)
        else:
            await self._control.ask("HSET", keys.MEMBERS, group, data)

    # --- retention ---

    async def length(self, stream: bytes) -> int:
        return int(await self._control.ask("XLEN", stream))

    async def trim_before(self, stream: bytes, first_kept: bytes) -> int:
        return await stream_commands.trim_before(self._control, stream, first_kept)

    async def trim_to(self, stream: bytes, entries: int) -> int:
        return await stream_commands.trim(self._control, stream, "MAXLEN", entries)

    async def producers(self, base: bytes) -> dict[bytes, bytes]:
        """Field of the state key -> a producer's last batches: `epoch used;...`."""
        found = pairs(await self._control.ask("HGETALL", keys.state(base)))
        return {name: value for name, value in found.items() if name.startswith(b"p:")}

    async def forget_producers(self, base: bytes, names: Sequence[bytes]) -> None:
        await self._control.ask("HDEL", keys.state(base), *names)


def _bounds(reply: list[Any]) -> Bounds:
    length, first, last, marks, start, added = reply
    return Bounds(length, first, last, marks, int(start), added)


def _stream_group(facts: dict[bytes, Any]) -> StreamGroup:
    return StreamGroup(
        facts[b"name"],
        facts[b"consumers"],
        facts[b"pending"],
        facts[b"last-delivered-id"],
        facts.get(b"entries-read"),
        facts.get(b"lag"),
    )


def _no_stream(key: bytes, kind: bytes) -> KafkaError:
    text = f"{key.decode('utf-8', 'replace')} is a {kind.decode()} in Redis, not a stream"
    return KafkaError(ErrorCode.INVALID_CONFIG, text)


def _entries(reply: list[Any]) -> RawEntries:
    entries: RawEntries = reply  # lists of two in place of tuples: a copy would cost
    return entries
