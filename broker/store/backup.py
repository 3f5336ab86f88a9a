"""The store as backups see it: the mark of a backup, what is in a copy, and a restored copy.

A backup is a copy of the embedded store's append-only file up to a **mark**: a SET that the server
writes to the file in the same step in which everything is counted. So the copy ends at one moment,
and what must be in it is known exactly.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import redis

from moldau.broker.errors import StoreFault, StoreRefused
from moldau.broker.placement import SLOTS
from moldau.broker.store import keys
from moldau.broker.store.blocking import BlockingStore
from moldau.broker.store.groups import MEMBER, StoredGroup
from moldau.broker.store.scripts import script
from moldau.broker.store.streams import (
    START_FIELDS,
    CleanPart,
    Entry,
    SavedStart,
    decode_entries,
    read_saved_start,
)
from moldau.broker.store.topics import CALL_EVEN_IF_FULL, TopicRecord

_EXTENTS = script("log_extents")
_NATIVE_RESTORED = script("native_restored")

STREAMS_AT_ONCE = 10  # some milliseconds of the server, if their entries are large
ATTEMPTS = 20  # to mark while topics are created and deleted
ENTRIES_AT_ONCE = 64
CLOSED = b"closed in "  # as in store_loss/clean_shutdown.py


class StreamExtent(msgspec.Struct, array_like=True, frozen=True):
    """How much a stream holds: the number of its entries, and an id that it reaches.

    At a mark the number is exact, and the id was read before: asking for it copies two entries in
    the server, which would take too long for thousands of streams at once.
    """

    entries: int
    last_id: str

    def is_held_by(self, found: StreamExtent) -> bool:
        return self.entries == found.entries and _id(self.last_id) <= _id(found.last_id)


class MarkedTopic(msgspec.Struct, frozen=True):
    """A topic at the mark: what every partition's stream held."""

    name: str
    topic_id: str
    is_native: bool
    partitions: list[StreamExtent]


class Counted(msgspec.Struct, frozen=True):
    """What is counted beside the logs."""

    groups: int
    transactional_ids: int
    users: int
    acls: int
    tokens: int
    quotas: int


class Mark(msgspec.Struct, frozen=True):
    """What the store held at one moment. `value` is in the append-only file there."""

    value: str
    at_ms: int  # the store's clock
    format: str
    cluster_id: str
    topics: list[MarkedTopic]
    counted: Counted


def mark_command(value: str) -> bytes:
    """The mark as it stands in the append-only file."""
    return b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
        *(len(keys.BACKUP), keys.BACKUP),
        *(len(value), value.encode()),
    )


def is_native(record: TopicRecord) -> bool:
    return record.configs.get("moldau.storage", "").strip() == "native"


def log_key(record: TopicRecord, partition: int) -> bytes:
    """The key of a partition's stream."""
    if is_native(record):
        pattern = record.configs.get("moldau.native.key", "").strip()
        return keys.native_key(pattern, record.name, partition)
    return keys.stream(record.name, record.incarnation, partition)


class BackupStore(BlockingStore):
    """A store that is backed up, or a copy of one. Raises StoreFault."""

    # --- the mark ---

    def mark(self) -> Mark:
        """Count everything and write the mark, in one step."""
        reached = self._reached()
        for _ in range(ATTEMPTS):
            with self._redis.pipeline(transaction=True) as pipeline:
                try:
                    mark: Mark = self._ask(self._mark, pipeline, reached)
                except StoreFault as fault:
                    if not isinstance(fault.__cause__, redis.WatchError):
                        raise
                else:
                    return mark
        raise StoreRefused("topics are created or deleted without a pause: try again")

    def _reached(self) -> dict[bytes, str]:
        """The last id of every log, by key."""
        streams = _streams(self.live_topics())
        found: dict[bytes, str] = {}
        for first in range(0, len(streams), STREAMS_AT_ONCE):
            some = streams[first : first + STREAMS_AT_ONCE]
            extents = _extents(self._ask(self._redis.eval, _EXTENTS, len(some), *some))
            found |= {key: one.last_id for key, one in zip(some, extents, strict=True)}
        return found

    def _mark(self, pipeline: Any, reached: Mapping[bytes, str]) -> Mark:
        pipeline.watch(keys.TOPICS)
        topics = self._live_topics(pipeline.hvals(keys.TOPICS))
        streams, value = _streams(topics), secrets.token_hex(16)
        pipeline.multi()
        pipeline.time()
        pipeline.get(keys.FORMAT)
        pipeline.get(keys.CLUSTER)
        _count(pipeline)
        for stream in streams:
            pipeline.xlen(stream)
        pipeline.eval(CALL_EVEN_IF_FULL, 1, keys.BACKUP, "SET", value)
        now, stored_format, cluster, *rest = pipeline.execute()
        counted, rest = _counted(rest)
        extents = (
            StreamExtent(length, reached.get(stream, "0-0"))
            for stream, length in zip(streams, rest[:-1], strict=True)
        )
        return Mark(
            value,
            now[0] * 1000 + now[1] // 1000,
            (stored_format or b"").decode(),
            (cluster or b"").decode(),
            [
                MarkedTopic(
                    topic.name,
                    topic.topic_id.hex(),
                    is_native(topic),
                    [next(extents) for _ in range(topic.partitions)],
                )
                for topic in topics
            ],
            counted,
        )

    def _live_topics(self, values: list[bytes]) -> list[TopicRecord]:
        return sorted(
            (topic for topic in self.read_topics(values) if not topic.deleting),
            key=lambda topic: topic.name,
        )

    # --- what is in a copy ---

    def marked_with(self) -> str:
        """The value of the last mark that was loaded; empty: there is none."""
        return (self._ask(self._redis.get, keys.BACKUP) or b"").decode()

    def live_topics(self) -> list[TopicRecord]:
        return self._live_topics(self._ask(self._redis.hvals, keys.TOPICS))

    def counted(self) -> Counted:
        with self._redis.pipeline(transaction=False) as pipeline:
            _count(pipeline)
            return _counted(self._ask(pipeline.execute))[0]

    def extent(self, stream: bytes) -> StreamExtent:
        return _extents(self._ask(self._redis.eval, _EXTENTS, 1, stream))[0]

    def saved_start(self, log: bytes) -> SavedStart:
        """Where a log starts, its cleaned part and its epochs."""
        return read_saved_start(self._ask(self._redis.hmget, keys.state(log), START_FIELDS))

    def entries(self, log: bytes) -> Iterator[Entry]:
        """All entries of a log that is not native, without its cleaned part."""
        after = b"-"
        while True:
            words = ("XRANGE", log, after, "+", "COUNT", ENTRIES_AT_ONCE)
            found = decode_entries(_pairs(self._ask(self._redis.execute_command, *words)))
            yield from found
            if len(found) < ENTRIES_AT_ONCE:
                return
            after = b"(%d-1" % found[-1].base

    def cleaned_entries(self, log: bytes, part: CleanPart) -> Iterator[Entry]:
        """The entries of the cleaned part."""
        if part.generation:
            yield from self.entries(keys.clean(log, part.generation))

    def groups(self) -> Iterator[StoredGroup]:
        for slot in range(SLOTS):
            for name in sorted(self._ask(self._redis.smembers, keys.groups(slot))):
                group_id = name.decode()
                fields = self._ask(self._redis.hgetall, keys.group(slot, group_id))
                offsets = self._ask(self._redis.hgetall, keys.offsets(slot, group_id))
                members = tuple(data for field, data in fields.items() if field.startswith(MEMBER))
                yield StoredGroup(group_id, fields.get(b"record"), offsets, members)

    def transactions(self) -> Iterator[tuple[str, bytes | None]]:
        """Transactional ids and their records."""
        for slot in range(SLOTS):
            for name in sorted(self._ask(self._redis.smembers, keys.transactions(slot))):
                key = keys.transaction(slot, name.decode())
                yield name.decode(), self._ask(self._redis.hget, key, "record")

    # --- a restored copy (store_loss/restored_logs.py) ---

    def exists(self, key: bytes) -> bool:
        return bool(self._ask(self._redis.exists, key))

    def log_state(self, log: bytes) -> dict[bytes, bytes]:
        """Every field of a log's state."""
        found: dict[bytes, bytes] = self._ask(self._redis.hgetall, keys.state(log))
        return found

    def last_entry(self, log: bytes) -> Entry | None:
        words = ("XREVRANGE", log, "+", "-", "COUNT", 1)
        found = decode_entries(_pairs(self._ask(self._redis.execute_command, *words)))
        return found[0] if found else None

    def begin_epoch(
        self, log: bytes, *, start: int, number: int, text: bytes, first_entry: bytes,
        used_up: Sequence[bytes],
    ) -> None:  # fmt: skip
        """Begin a leader epoch. `text`: all epochs; `used_up`: fields of the state to remove."""
        pipeline: Any
        with self._redis.pipeline(transaction=True) as pipeline:
            if used_up:
                pipeline.hdel(keys.state(log), *used_up)
            # A log without a store id would be taken for one whose store has never changed.
            pipeline.hsetnx(keys.state(log), "history", "restored")
            pipeline.hset(keys.state(log), "epochs", text)
            pipeline.hset(keys.EPOCHS, log, number)
            pipeline.execute_command("XSETID", log, f"{start}-0")
            pipeline.execute_command("XADD", log, "NOMKSTREAM", f"{start}-1", "b", first_entry)
            self._ask(pipeline.execute)

    def raise_native_id(self, stream: bytes, milliseconds: int) -> None:
        """Let the entries of a native topic's stream go on above this time."""
        self._ask(self._redis.eval, _NATIVE_RESTORED, 1, stream, str(milliseconds))

    def forget_clean_shutdown(self) -> None:
        """Transactional ids are not those of a clean shutdown: the broker went on afterwards."""
        for slot in range(SLOTS):
            intact = self._ask(self._redis.hget, keys.slot(slot), "txns") or b""
            if intact.startswith(CLOSED):
                value = intact.removeprefix(CLOSED)
                self._ask(self._redis.hset, keys.slot(slot), "txns", value)

    def claim(self) -> str | None:
        """Who serves the database, if anyone does."""
        found: bytes | None = self._ask(self._redis.get, keys.SERVING)
        return None if found is None else found.decode("utf-8", "replace")

    def is_loading(self) -> bool:
        """Is the server reading its file? Raises StoreFault while it does not listen."""
        return bool(self._ask(self._redis.info, "persistence")["loading"])

    def shut_down(self) -> None:
        """Stop the server; its file is synced first."""
        self._ask(self._redis.shutdown)


def _streams(topics: Iterable[TopicRecord]) -> list[bytes]:
    return [log_key(topic, at) for topic in topics for at in range(topic.partitions)]


def _count(pipeline: Any) -> None:
    for slot in range(SLOTS):
        pipeline.scard(keys.groups(slot))
    for slot in range(SLOTS):
        pipeline.scard(keys.transactions(slot))
    for key in (keys.USERS, keys.ACLS, keys.TOKENS, keys.QUOTAS):
        pipeline.hlen(key)


def _counted(replies: list[Any]) -> tuple[Counted, list[Any]]:
    """What `_count` asked for, and the replies behind it."""
    groups, transactions = sum(replies[:SLOTS]), sum(replies[SLOTS : 2 * SLOTS])
    hashes, rest = replies[2 * SLOTS : 2 * SLOTS + 4], replies[2 * SLOTS + 4 :]
    return Counted(groups, transactions, *hashes), rest


def _extents(reply: list[Any]) -> list[StreamExtent]:
    return [
        StreamExtent(length, last_id.decode())
        for length, last_id in zip(reply[::2], reply[1::2], strict=True)
    ]


def _id(text: str) -> tuple[int, int]:
    milliseconds, _, sequence = text.partition("-")
    return int(milliseconds), int(sequence)


def _pairs(reply: list[Any]) -> list[Any]:
    """Entries as the server sends them; redis-py makes dictionaries of their fields."""
    return [
        (entry_id, [word for pair in fields.items() for word in pair]) for entry_id, fields in reply
    ]
