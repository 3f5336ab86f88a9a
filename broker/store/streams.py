"""The commands of partition logs: append, read, trim, and the keys beside a log's stream.

Entries are `(base offset, blob, nonce)`; callers never see an entry id or a field name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from moldau.broker.errors import Callback, StoreFault
from moldau.broker.store import keys, stream_commands
from moldau.broker.store.aborted import AbortedTransaction, decode_aborted, encode_aborted
from moldau.broker.store.pipe import REPLY_TIMEOUT, Done, Pipe, bulk, command, resolve, within
from moldau.broker.store.scripts import script
from moldau.broker.wire.batch import Buffer, headers

INDEX_PAGE = 512
ABORTED_AT_ONCE = 1000

_CREATE = script("log_create")
_RAISE_START = script("log_raise_start")
_SAVE_SNAPSHOT = script("log_save_snapshot")
_SAVE_ABORTED = script("log_save_aborted")
_SHORTEN_EPOCHS = script("log_shorten_epochs")
_APPEND_MARKER = script("log_append_marker")
_LAST_ID = script("log_last_id")


class CleanPart(msgspec.Struct, array_like=True, frozen=True):
    """What replaces the beginning of a log while `generation` is current.

    Bytes are positions in everything ever appended to the log: an entry of the cleaned part is at
    `end_bytes` minus what follows it there, so positions are continuous across the border.
    """

    generation: int = 0
    end: int = 0  # offsets below it are in this part or gone; a base offset in the live stream
    end_bytes: int = 0
    last: int = -1  # base offset of its last entry: a reader that has seen it has seen all
    entries: int = 0
    max_timestamp: int = -1
    max_timestamp_base: int = -1
    tombstones_until: int = -1  # the latest delete horizon in it
    previous: int = 0  # the generation it replaced


NOTHING_CLEANED = CleanPart()
_decode_part = msgspec.msgpack.Decoder(CleanPart).decode


def decode_part(value: bytes | None) -> CleanPart:
    return NOTHING_CLEANED if value is None else _decode_part(value)


class LastId(NamedTuple):
    """The largest id that a log ever had: of an entry, perhaps removed since, or set by XSETID."""

    text: bytes
    end: int  # the log reaches at least up to here


class Entry(NamedTuple):
    base: int
    blob: bytes
    nonce: bytes

    @property
    def end(self) -> int:
        """The offset after its last one."""
        end = self.base
        for header in headers(self.blob):
            end = header.next_offset
        return end


class SavedStart(NamedTuple):
    """Where a log starts, its cleaned part and its leader epochs (`Epochs.text`). They are read in
    one command, and so are consistent."""

    start: int
    start_bytes: int
    clean: CleanPart
    epochs: bytes | None


class SavedState(NamedTuple):
    """The state of a log, read in one command as well."""

    start: SavedStart
    snapshot: bytes | None
    store_id: bytes | None  # under which the log was last known to be intact
    reserved: int  # the worker that asked may use offsets below this


def decode_entries(reply: list[Any]) -> list[Entry]:
    return [
        Entry(int(entry_id[:-2]), fields[1], fields[3] if len(fields) > 2 else b"")
        for entry_id, fields in reply
        if fields is not None
    ]


class Streams:
    """Logs in Redis. Appends, reads and control have a pipe each."""

    def __init__(self, bulk: Pipe, reads: Pipe, control: Pipe) -> None:
        self._bulk = bulk
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
        self._bulk.send(append_command(prefix, offset, parts, size, nonce), done, size)
        if wake is not None:
            # In the same write: the leader wakes its readers even if this worker dies now.
            self._bulk.send((wake,), _ignore)

    def append_even_if_full(self, key: bytes, offset: int, blob: bytes, done: Done) -> None:
        """`append` a small entry, even if the store has reached its memory limit."""
        words = ("EVAL", _APPEND_MARKER, 1, key, b"%d-1" % offset, blob)
        self._bulk.send((command(*words),), done)

    def wake(self, wake: bytes) -> None:
        """Send only the wake-up of `append`."""
        self._bulk.send((wake,), _ignore)

    # --- reading ---

    def read(self, key: bytes, offset: int, count: int, done: Callback[list[Entry]]) -> None:
        """The entry that contains the offset and up to `count` after it, in one round trip."""
        first: list[Any] = []

        def second(reply: Any) -> None:
            if isinstance(first[0], StoreFault):
                done(first[0])
            elif isinstance(reply, StoreFault):
                done(reply)
            else:
                done(decode_entries(first[0]) + decode_entries(reply))

        self._reads.send((read_back_command(key, offset),), first.append)
        self._reads.send((read_on_command(key, offset + 1, count),), second)

    def read_on(self, key: bytes, offset: int, count: int, done: Callback[list[Entry]]) -> None:
        """Up to `count` entries that begin at the offset or after it."""

        def finish(reply: Any) -> None:
            done(reply if isinstance(reply, StoreFault) else decode_entries(reply))

        self._reads.send((read_on_command(key, offset, count),), finish)

    async def last_entry(self, key: bytes) -> Entry | None:
        reply = await self._reads.ask("XREVRANGE", key, "+", "-", "COUNT", 1)
        entries = decode_entries(reply)
        return entries[0] if entries else None

    async def last_id(self, key: bytes) -> LastId:
        text: bytes = await self._reads.ask("EVAL", _LAST_ID, 1, key)
        offset, _, sequence = text.partition(b"-")
        return LastId(text, int(offset) + (sequence != b"0"))

    async def entries_at(self, key: bytes, offset: int, count: int) -> list[Entry]:
        """`read` as a coroutine."""
        future: asyncio.Future[list[Entry]] = asyncio.get_running_loop().create_future()
        self.read(key, offset, count, partial(resolve, future))
        entries: list[Entry] = await within(REPLY_TIMEOUT, future)
        return entries

    async def first_entries(self, key: bytes, offset: int, count: int) -> list[Entry]:
        return decode_entries(
            await self._reads.ask("XRANGE", key, b"%d-1" % offset, "+", "COUNT", count)
        )

    # --- creating, removing, the state key ---

    async def create(
        self, key: bytes, store_id: bytes = b"", leader: int = 0, reserved: int = 0
    ) -> None:
        """Create an empty stream: XADD NOMKSTREAM needs one.

        The first offsets are reserved for its leader. They need no confirmation: who loses the
        reservation loses the whole log.
        """
        await stream_commands.create_empty(self._control, key)
        words = (store_id, leader, reserved) if store_id else ()
        await self._control.ask("EVAL", _CREATE, 1, keys.state(key), *words)

    async def remove(self, key: bytes) -> None:
        """Remove all keys of a partition, one per command, as a Redis Cluster requires."""
        # The log first: a compaction in progress checks that it still exists.
        await self._control.ask("UNLINK", key)
        saved, allocated = await self._control.ask(
            "HMGET", keys.state(key), "clean", "clean_allocated"
        )
        part = decode_part(saved)
        generations = {part.previous, *range(part.generation, int(allocated or 0) + 1)} - {0}
        for number in sorted(generations):
            for name in keys.generation(key, number):
                await self._control.ask("UNLINK", name)
        for name in (keys.state(key), keys.times(key), keys.aborted(key)):
            await self._control.ask("UNLINK", name)

    async def exists(self, key: bytes) -> bool:
        return bool(await self._reads.ask("EXISTS", key))

    async def saved_state(self, key: bytes, worker: int = 0) -> SavedState:
        """Read the state of a log. `worker`: whose reservation to read."""
        fields = (*START_FIELDS, "snapshot", "history", f"c:{worker}")
        *start, snapshot, store_id, reserved = await self._reads.ask(
            "HMGET", keys.state(key), *fields
        )
        return SavedState(read_saved_start(start), snapshot, store_id, int(reserved or 0))

    def saved_start(self, key: bytes, done: Callback[SavedStart]) -> None:
        def finish(reply: Any) -> None:
            done(reply if isinstance(reply, StoreFault) else read_saved_start(reply))

        self._reads.send((command("HMGET", keys.state(key), *START_FIELDS),), finish)

    async def save_snapshot(
        self, key: bytes, offset: int, snapshot: bytes, store_id: bytes
    ) -> None:
        """`store_id`: the one under which it was made. The store may have changed since."""
        words = (offset, snapshot, store_id)
        await self._control.ask("EVAL", _SAVE_SNAPSHOT, 1, keys.state(key), *words)

    async def snapshot_at(self, key: bytes) -> int:
        """The offset up to which a snapshot covers the log, -1 without one."""
        return int(await self._control.ask("HGET", keys.state(key), "snapshot_at") or -1)

    async def raise_start(self, key: bytes, start: int, start_bytes: int, generation: int) -> bool:
        """Raise the log start. False: the bytes were counted in a generation that is not
        current."""
        words = (start, start_bytes, generation)
        outcome: int = await self._control.ask("EVAL", _RAISE_START, 1, keys.state(key), *words)
        return outcome >= 0

    async def shorten_epochs(self, key: bytes, known: bytes, kept: bytes) -> None:
        await self._control.ask("EVAL", _SHORTEN_EPOCHS, 1, keys.state(key), known, kept)

    async def trim(self, key: bytes, first_kept: int) -> int:
        """Remove the entries below `first_kept`, a base offset."""
        return await stream_commands.trim_before(self._control, key, b"%d-1" % first_kept)

    # --- the sparse time index: the score is the running maximum of timestamps ---

    def index(self, key: bytes, max_timestamp: int, offset: int, size: int) -> None:
        """Record that up to `offset` no timestamp is above `max_timestamp`; `size` bytes so far."""
        words = ("ZADD", keys.times(key), max_timestamp, f"{offset}:{size}")
        self._control.send((command(*words),), _ignore)

    async def index_before(self, key: bytes, timestamp: int) -> tuple[int, int] | None:
        """The last point (offset, bytes) up to which every timestamp is below `timestamp`."""
        reply = await self._reads.ask(
            "ZREVRANGEBYSCORE", keys.times(key), f"({timestamp}", "-inf", "LIMIT", 0, 1
        )
        return _point(reply[0]) if reply else None

    async def index_points(self, key: bytes, page: int = 0) -> list[tuple[int, int]]:
        """A page of points (offset, bytes) by timestamp, oldest first; equal ones in any order."""
        first = page * INDEX_PAGE
        reply = await self._reads.ask("ZRANGE", keys.times(key), first, first + INDEX_PAGE - 1)
        return [_point(member) for member in reply]

    async def drop_index(self, key: bytes, points: list[tuple[int, int]]) -> None:
        if points:
            await self._control.ask(
                "ZREM", keys.times(key), *(f"{offset}:{size}" for offset, size in points)
            )

    # --- aborted transactions ---

    async def save_aborted(self, key: bytes, aborted: Sequence[AbortedTransaction]) -> None:
        """Save aborted transactions. Every fold finds the same, so saving them twice is
        harmless."""
        for first in range(0, len(aborted), ABORTED_AT_ONCE):
            some = aborted[first : first + ABORTED_AT_ONCE]
            words = (word for each in some for word in encode_aborted(each))
            where = (keys.state(key), keys.aborted(key))
            await self._control.ask("EVAL", _SAVE_ABORTED, 2, *where, *words)

    def aborted_from(
        self, key: bytes, marker: int, count: int, done: Callback[list[AbortedTransaction]]
    ) -> None:
        """Up to `count` aborted transactions whose marker is at this offset or above."""

        def finish(reply: Any) -> None:
            done(reply if isinstance(reply, StoreFault) else decode_aborted(reply))

        words = ("ZRANGEBYSCORE", keys.aborted(key), marker, "+inf", "WITHSCORES")
        self._reads.send((command(*words, "LIMIT", 0, count),), finish)

    async def drop_aborted(self, key: bytes, first: int | str, last: int | str) -> None:
        """Remove aborted transactions whose marker lies between `first` and `last`."""
        await self._control.ask("ZREMRANGEBYSCORE", keys.aborted(key), first, last)


START_FIELDS = ("start", "start_bytes", "clean", "epochs")


def read_saved_start(reply: list[bytes | None]) -> SavedStart:
    start, start_bytes, clean, epochs = reply
    return SavedStart(int(start or 0), int(start_bytes or 0), decode_part(clean), epochs)


def _point(member: bytes) -> tuple[int, int]:
    offset, _, size = member.partition(b":")
    return int(offset), int(size)


def _ignore(reply: Any) -> None:
    """Ignore the outcome of a hint (a wake-up, an index point): losing one costs time, not data."""


# --- the commands of the hot path, as bytes ready for the wire ---


def append_prefix(key: bytes) -> bytes:
    """`XADD key NOMKSTREAM` without the id and the fields: built once per partition."""
    return b"$4\r\nXADD\r\n" + bulk(key) + b"$10\r\nNOMKSTREAM\r\n"


def append_command(
    prefix: bytes, offset: int, parts: list[Buffer], size: int, nonce: bytes
) -> list[Buffer]:
    """`XADD key NOMKSTREAM <offset>-1 b <parts concatenated> [w <nonce>]`."""
    entry_id = b"%d-1" % offset
    if nonce:
        head = b"*8\r\n%b$%d\r\n%b\r\n$1\r\nb\r\n$%d\r\n" % (prefix, len(entry_id), entry_id, size)
        return [head, *parts, b"\r\n$1\r\nw\r\n$%d\r\n%b\r\n" % (len(nonce), nonce)]
    head = b"*6\r\n%b$%d\r\n%b\r\n$1\r\nb\r\n$%d\r\n" % (prefix, len(entry_id), entry_id, size)
    return [head, *parts, b"\r\n"]


def read_back_command(key: bytes, offset: int) -> bytes:
    """`XREVRANGE key <offset>-1 - COUNT 1`: the entry that contains the offset, if any."""
    return b"*6\r\n$9\r\nXREVRANGE\r\n%b%b$1\r\n-\r\n$5\r\nCOUNT\r\n$1\r\n1\r\n" % (
        bulk(key),
        bulk(b"%d-1" % offset),
    )


def read_on_command(key: bytes, offset: int, count: int) -> bytes:
    """`XRANGE key <offset>-1 + COUNT n`: the entries that begin at the offset or after it."""
    return b"*6\r\n$6\r\nXRANGE\r\n%b%b$1\r\n+\r\n$5\r\nCOUNT\r\n%b" % (
        bulk(key),
        bulk(b"%d-1" % offset),
        bulk(b"%d" % count),
    )


def wake_command(key: bytes, partition_key: bytes) -> bytes:
    """`XADD moldau:wake:<leader> MAXLEN ~ 1000 * k <partition's key>`."""
    return (
        b"*8\r\n$4\r\nXADD\r\n%b$6\r\nMAXLEN\r\n$1\r\n~\r\n$4\r\n1000\r\n$1\r\n*\r\n$1\r\nk\r\n%b"
        % (bulk(key), bulk(partition_key))
    )
