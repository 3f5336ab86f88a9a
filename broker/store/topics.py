"""Topics, broker configuration and ids in Redis, and the change stream that announces changes.

A topic's record is replaced as a whole, by compare-and-set against what was read. A topic is
deleted in three steps: mark its record, remove its logs, remove the record. A worker that finds a
marked record, after a crash, finishes the deletion.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from broker.errors import StoreFault, StoreRefused
from broker.store import keys
from broker.store.pipe import Pipe
from broker.store.resp import pairs
from broker.store.unapplied import Acknowledgement, Unapplied

CHANGES_KEPT = 10_000
ACKNOWLEDGEMENTS_KEPT = 1000
_ACKNOWLEDGED = frozenset({"topic", "config"})  # kinds of changes that replies wait for

# Deleting topics and lowering retention free memory, so they must work in a full store.
_EVEN_IF_FULL = "#!lua flags=allow-oom\n"
_REPLACE = (
    _EVEN_IF_FULL + "if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then "
    "redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) return 1 end return 0"
)
_REMOVE = (
    _EVEN_IF_FULL + "if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then "
    "return redis.call('HDEL', KEYS[1], ARGV[1]) end return 0"
)
_RAISE = (
    "for i = 1, #ARGV, 2 do local at = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0') "
    "if at < tonumber(ARGV[i + 1]) then redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end end"
)
_RAISE_IDS = (
    "if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[1]) then "
    "redis.call('SET', KEYS[1], ARGV[1]) end"
)
_CALL = _EVEN_IF_FULL + "return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))"


class TopicRecord(msgspec.Struct, frozen=True):
    name: str
    topic_id: bytes
    partitions: int
    incarnation: int
    created_ms: int
    configs: dict[str, str] = {}
    deleting: bool = False


class Change(msgspec.Struct, frozen=True):
    """An entry of the change stream: what changed, without the new value."""

    # "topic", "start" (of a log, or its cleaned part), "config", "members" (of a group),
    # "worker" (`worker` has started)
    kind: str
    name: str = ""
    partition: int = -1
    worker: int = -1  # to acknowledge to; -1: no acknowledgement
    number: int = 0  # to acknowledge with


_encode = msgspec.msgpack.Encoder().encode
_decode_topic = msgspec.msgpack.Decoder(TopicRecord).decode
_decode_change = msgspec.msgpack.Decoder(Change).decode
_decode_receipt = msgspec.msgpack.Decoder(Acknowledgement).decode
_decode_config = msgspec.msgpack.Decoder(dict[str, str]).decode


class TopicStore:
    def __init__(self, control: Pipe, worker: int = 0, workers: int = 1) -> None:
        self._control = control
        self._worker = worker
        self.unapplied = Unapplied(worker, workers)

    # --- topics ---

    async def all_topics(self) -> list[TopicRecord]:
        reply = await self._control.ask("HVALS", keys.TOPICS)
        return [_decode_topic(value) for value in reply]

    async def topic(self, name: str) -> TopicRecord | None:
        value = await self._control.ask("HGET", keys.TOPICS, name)
        return None if value is None else _decode_topic(value)

    async def incarnation(self, name: str) -> int:
        return int(await self._control.ask("HGET", keys.INCARNATIONS, name) or 0)

    async def add(self, record: TopicRecord) -> bool:
        """False when the topic exists."""
        return bool(await self._control.ask("HSETNX", keys.TOPICS, record.name, _encode(record)))

    async def replace(self, old: TopicRecord, new: TopicRecord) -> bool:
        """False when the record is no longer `old`."""
        words = (old.name, _encode(old), _encode(new))
        return bool(await self._control.ask("EVAL", _REPLACE, 1, keys.TOPICS, *words))

    async def remove(self, record: TopicRecord) -> bool:
        """The last step of a deletion. The next topic of this name gets another incarnation."""
        # Before the record is removed: a crash in between wastes a number, never reuses a log.
        if await self.incarnation(record.name) <= record.incarnation:
            count = ("HSET", record.name, record.incarnation + 1)
            await self._control.ask("EVAL", _CALL, 1, keys.INCARNATIONS, *count)
        return bool(
            await self._control.ask("EVAL", _REMOVE, 1, keys.TOPICS, record.name, _encode(record))
        )

    # --- broker configuration ---

    async def broker_configs(self) -> dict[str, dict[str, str]]:
        """Dynamic configuration by node id; "" is the default of all brokers."""
        found = pairs(await self._control.ask("HGETALL", keys.CONFIG))
        return {node.decode(): _decode_config(value) for node, value in found.items()}

    async def set_broker_config(
        self, node: str, old: dict[str, str] | None, new: dict[str, str]
    ) -> bool:
        """False when it is no longer `old`."""
        if old is None:
            return bool(await self._control.ask("HSETNX", keys.CONFIG, node, _encode(new)))
        words = (node, _encode(old), _encode(new))
        return bool(await self._control.ask("EVAL", _REPLACE, 1, keys.CONFIG, *words))

    # --- ids ---

    async def cluster_id(self, known: str = "") -> str:
        """The stored one; if there is none, `known` or a new one is stored."""
        return await self._stored_id(keys.CLUSTER, known.encode() or _random_id())

    async def contents_id(self) -> str:
        """Lost together with the store's contents: another id means the store was emptied."""
        return await self._stored_id(keys.CONTENTS, _random_id())

    async def has_contents(self, known: str) -> bool:
        return bool(await self._control.ask("GET", keys.CONTENTS) == known.encode())

    async def _stored_id(self, key: bytes, proposed: bytes) -> str:
        await self._control.ask("SETNX", key, proposed)
        value: bytes = await self._control.ask("GET", key)
        return value.decode()

    async def reseed(self, incarnations: Mapping[str, int]) -> None:
        """After a store lost everything: make sure that it reuses neither the key of a log that a
        worker may still hold, nor a producer id. The time is above every id counted so far."""
        words = [word for name, number in incarnations.items() for word in (name, number + 1)]
        await self._control.ask("EVAL", _RAISE, 1, keys.INCARNATIONS, *words)
        now_ms = time.time_ns() // 1_000_000
        await self._control.ask("EVAL", _RAISE_IDS, 1, keys.PRODUCER_IDS, now_ms)

    async def take_producer_ids(self, count: int) -> int:
        """The first of `count` consecutive producer ids that are handed out once only."""
        last: int = await self._control.ask("INCRBY", keys.PRODUCER_IDS, count)
        return last - count

    # --- changes ---

    async def announce(self, change: Change) -> None:
        """Announce to every worker. `unapplied.wait()` waits until they have applied it."""
        number = self.unapplied.expect() if change.kind in _ACKNOWLEDGED else None
        if number is None:
            await self._append_change(change)
            return
        try:
            await self._append_change(
                msgspec.structs.replace(change, worker=self._worker, number=number)
            )
        except StoreFault:
            self.unapplied.forget(number)
            raise

    async def acknowledge(self, change: Change) -> None:
        """This worker has applied a change. In a full store too: the reply waits for it."""
        if change.worker not in (-1, self._worker):
            receipt = _encode(Acknowledgement(change.number, self._worker))
            words = ("XADD", "MAXLEN", "~", ACKNOWLEDGEMENTS_KEPT, "*", "a", receipt)
            await self._control.ask("EVAL", _CALL, 1, keys.wake(change.worker), *words)

    async def _append_change(self, change: Change) -> None:
        words = ("XADD", "MAXLEN", "~", CHANGES_KEPT, "*", "c", _encode(change))
        await self._control.ask("EVAL", _CALL, 1, keys.CHANGES, *words)

    async def last_change(self) -> bytes:
        """The last id of the change stream. Read it before loading, so that no change is missed."""
        last: bytes = (await self._change_stream()).get(b"last-generated-id", b"0-0")
        return last

    async def change_count(self) -> int:
        """How many changes there have been since the store was set up."""
        count: int = (await self._change_stream()).get(b"entries-added", 0)
        return count

    async def _change_stream(self) -> dict[bytes, Any]:
        """XINFO STREAM of the change stream; empty before the first change."""
        try:
            info = await self._control.ask("XINFO", "STREAM", keys.CHANGES)
        except StoreRefused as fault:
            if "no such key" not in str(fault):
                raise
            return {}
        return pairs(info)


def _random_id() -> bytes:
    return base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=")


def read_change(value: bytes) -> Change:
    return _decode_change(value)


def read_acknowledgement(value: bytes) -> Acknowledgement:
    return _decode_receipt(value)
