"""Topics, broker configuration and ids in Redis, and the change stream that tells of them.

A topic's record is written whole, and replaced only if it still is what was read (compare and
set). A topic that is being deleted is marked first, its logs removed, then its record: whoever
finds a marked one (a crash came between) finishes the job.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from broker.errors import StoreRefused
from broker.store import keys
from broker.store.pipe import Pipe, within
from broker.store.streams import CONTROL_TIMEOUT

CHANGES_KEPT = 10_000

# Deleting topics and lowering retention make room: they have to work in a full store too.
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
    """What the change stream carries: that something changed, not what to."""

    kind: str  # "topic", "start" (of a log, or its cleaned part), "config", "members" (of a group)
    name: str = ""
    partition: int = -1


_encode = msgspec.msgpack.Encoder().encode
_decode_topic = msgspec.msgpack.Decoder(TopicRecord).decode
_decode_change = msgspec.msgpack.Decoder(Change).decode
_decode_config = msgspec.msgpack.Decoder(dict[str, str]).decode


class TopicStore:
    def __init__(self, control: Pipe) -> None:
        self._control = control

    async def _call(self, *words: bytes | str | int) -> Any:
        return await within(CONTROL_TIMEOUT, self._control.call(*words))

    # --- topics ---

    async def all_topics(self) -> list[TopicRecord]:
        reply = await self._call("HVALS", keys.TOPICS)
        return [_decode_topic(value) for value in reply]

    async def topic(self, name: str) -> TopicRecord | None:
        value = await self._call("HGET", keys.TOPICS, name)
        return None if value is None else _decode_topic(value)

    async def incarnation(self, name: str) -> int:
        return int(await self._call("HGET", keys.INCARNATIONS, name) or 0)

    async def add(self, record: TopicRecord) -> bool:
        """False when the topic is there already."""
        return bool(await self._call("HSETNX", keys.TOPICS, record.name, _encode(record)))

    async def replace(self, old: TopicRecord, new: TopicRecord) -> bool:
        """False when the record is no longer `old`."""
        words = (old.name, _encode(old), _encode(new))
        return bool(await self._call("EVAL", _REPLACE, 1, keys.TOPICS, *words))

    async def remove(self, record: TopicRecord) -> bool:
        """The last step of a deletion. The next topic of this name is another incarnation."""
        # Only ever ahead of the record: a crash in between costs a number, not a log.
        if await self.incarnation(record.name) <= record.incarnation:
            words = ("HSET", record.name, record.incarnation + 1)
            await self._call("EVAL", _CALL, 1, keys.INCARNATIONS, *words)
        return bool(await self._call("EVAL", _REMOVE, 1, keys.TOPICS, record.name, _encode(record)))

    # --- broker configuration ---

    async def broker_configs(self) -> dict[str, dict[str, str]]:
        """Dynamic configuration by node id; "" is every broker's default."""
        reply = await self._call("HGETALL", keys.CONFIG)
        pairs = zip(reply[::2], reply[1::2], strict=True)
        return {node.decode(): _decode_config(value) for node, value in pairs}

    async def set_broker_config(
        self, node: str, old: dict[str, str] | None, new: dict[str, str]
    ) -> bool:
        """False when it is no longer `old`."""
        if old is None:
            return bool(await self._call("HSETNX", keys.CONFIG, node, _encode(new)))
        words = (node, _encode(old), _encode(new))
        return bool(await self._call("EVAL", _REPLACE, 1, keys.CONFIG, *words))

    # --- ids ---

    async def cluster_id(self, known: str = "") -> str:
        """The one that is there; `known`, or a new one, if there is none."""
        return await self._settled_id(keys.CLUSTER, known.encode() or _fresh_id())

    async def contents_id(self) -> str:
        """Goes with the store's contents: another one, and they are not what we know."""
        return await self._settled_id(keys.CONTENTS, _fresh_id())

    async def has_contents(self, known: str) -> bool:
        return bool(await self._call("GET", keys.CONTENTS) == known.encode())

    async def _settled_id(self, key: bytes, proposed: bytes) -> str:
        await self._call("SETNX", key, proposed)
        value: bytes = await self._call("GET", key)
        return value.decode()

    async def begin_anew(self, incarnations: Mapping[str, int]) -> None:
        """What a store that lost everything must not give twice: names of logs which a worker may
        still take for its own, and producer ids. The time is above every id that was counted."""
        words = [word for name, number in incarnations.items() for word in (name, number + 1)]
        await self._call("EVAL", _RAISE, 1, keys.INCARNATIONS, *words)
        now_ms = time.time_ns() // 1_000_000
        await self._call("EVAL", _RAISE_IDS, 1, keys.PRODUCER_IDS, now_ms)

    async def take_producer_ids(self, count: int) -> int:
        """The first of `count` producer ids that nobody else will ever get."""
        last: int = await self._call("INCRBY", keys.PRODUCER_IDS, count)
        return last - count

    # --- changes ---

    async def announce(self, change: Change) -> None:
        words = ("XADD", "MAXLEN", "~", CHANGES_KEPT, "*", "c", _encode(change))
        await self._call("EVAL", _CALL, 1, keys.CHANGES, *words)

    async def last_change(self) -> bytes:
        """Where the change stream stands: read before loading, so that nothing is missed."""
        try:
            info = await self._call("XINFO", "STREAM", keys.CHANGES)
        except StoreRefused as fault:
            if "no such key" not in str(fault):
                raise
            return b"0-0"
        facts = dict(zip(info[::2], info[1::2], strict=True))
        last: bytes = facts[b"last-generated-id"]
        return last


def _fresh_id() -> bytes:
    return base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=")


def read_change(value: bytes) -> Change:
    return _decode_change(value)
