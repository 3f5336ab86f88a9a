"""Topics, broker configuration and ids in Redis, and the change stream that announces changes.

A topic's record is replaced as a whole, by compare-and-set against what was read. A topic is
deleted in three steps: mark its record, remove its logs, remove the record. A worker that finds a
marked record, after a crash, finishes the deletion.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from moldau.broker.errors import StoreFault, StoreRefused
from moldau.broker.store import format as store_format
from moldau.broker.store import keys
from moldau.broker.store.change_acks import Acknowledgement, ChangeAcks
from moldau.broker.store.pipe import Pipe, pairs
from moldau.broker.store.scripts import script

CHANGES_KEPT = 10_000
ACKNOWLEDGEMENTS_KEPT = 1000
NAMES_AT_ONCE = 1000
# Kinds of changes that replies wait for.
_ACKNOWLEDGED = frozenset(
    {"topic", "config", "group", "client-metrics", "user", "acl", "token", "quota", "loggers"}
)

_REPLACE = script("field_replace")
_REMOVE = script("field_remove")
_IDS_PER_MICROSECOND = 1000  # see producer_ids_take.lua
_TAKE_IDS = script("producer_ids_take")
_RAISE_IDS = script("producer_ids_raise")
FIRST_STORE_ID = "~history"  # a field beside the names of topics, which have no ~
_INCARNATION = script("topic_incarnation")
CALL_EVEN_IF_FULL = script("call_even_if_full")


class TopicRecord(msgspec.Struct, frozen=True):
    name: str
    topic_id: bytes
    partitions: int
    incarnation: int
    created_ms: int
    configs: dict[str, str] = {}
    deleting: bool = False


class Change(msgspec.Struct, frozen=True):
    """An entry of the change stream: says what changed. The new value is read from the store."""

    # "topic", "start" (of a log, or its cleaned part), "epoch" (of a log), "config", "members" (of
    # a group), "user", "acl", "quota", "group", "client-metrics" (all are read again), "token" (the
    # one with this id; without an id all are read again), "loggers" (`name` has their levels, which
    # are not stored), "worker" (`worker` is starting, and has not loaded anything yet)
    kind: str
    name: str = ""
    partition: int = -1
    worker: int = -1  # acknowledge to this worker; -1: not at all
    number: int = 0  # acknowledge this number


_encode = msgspec.msgpack.Encoder().encode
_decode_topic = msgspec.msgpack.Decoder(TopicRecord).decode
_decode_change = msgspec.msgpack.Decoder(Change).decode
_decode_receipt = msgspec.msgpack.Decoder(Acknowledgement).decode
_decode_config = msgspec.msgpack.Decoder(dict[str, str]).decode


def guard_record() -> bytes:
    """Keeps Moldau 0.2 out: its workers refuse to start, and show this text (`format.py`)."""
    text = f"the store has format {store_format.CURRENT} and needs Moldau {store_format.NEEDS}"
    return _encode(TopicRecord(store_format.GUARD, bytes(16), 0, 0, 0, {"retention.ms": text}))


class TopicStore:
    def __init__(self, control: Pipe, worker: int = 0, workers: int = 1) -> None:
        self._control = control
        self._worker = worker
        self.change_acks = ChangeAcks(worker, workers)
        self._ids_known = 0  # microseconds: this worker was given producer ids below

    # --- topics ---

    async def all_topics(self) -> list[TopicRecord]:
        reply = await self._control.ask("HVALS", keys.TOPICS)
        records = [_decode_topic(value) for value in reply]
        return [record for record in records if record.name != store_format.GUARD]

    async def topic(self, name: str) -> TopicRecord | None:
        if name == store_format.GUARD:
            return None
        value = await self._control.ask("HGET", keys.TOPICS, name)
        return None if value is None else _decode_topic(value)

    async def topics(self, names: Sequence[str]) -> dict[str, TopicRecord | None]:
        """The records of these topics; None for each that does not exist."""
        found: dict[str, TopicRecord | None] = {}
        for at in range(0, len(names), NAMES_AT_ONCE):
            some = names[at : at + NAMES_AT_ONCE]
            for name, value in zip(
                some, await self._control.ask("HMGET", keys.TOPICS, *some), strict=True
            ):
                is_topic = value is not None and name != store_format.GUARD
                found[name] = _decode_topic(value) if is_topic else None
        return found

    async def new_incarnation(self, name: str, *, unused: bool) -> int:
        """Choose the incarnation of a new topic: one that no topic of this name has had.

        0, for short key names, if the store has lost nothing since it was set up: then a name
        without a number was never used. Otherwise its creation may have been lost, and a worker may
        still hold the log. `unused`: as far as the caller knows.
        """
        store_id = self._control.store_id if unused else b""
        words = (name, FIRST_STORE_ID, store_id)
        return int(await self._control.ask("EVAL", _INCARNATION, 1, keys.INCARNATIONS, *words))

    async def add(self, record: TopicRecord) -> bool:
        """Add a topic. False: it exists."""
        return bool(await self._control.ask("HSETNX", keys.TOPICS, record.name, _encode(record)))

    async def replace(self, old: TopicRecord, new: TopicRecord) -> bool:
        """Compare-and-set: False if the stored record is not `old`."""
        words = (old.name, _encode(old), _encode(new))
        return bool(await self._control.ask("EVAL", _REPLACE, 1, keys.TOPICS, *words))

    async def remove(self, record: TopicRecord) -> bool:
        """Remove the record: the last step of a deletion. The next topic of this name gets another
        incarnation."""
        # Before the record is removed: a crash in between wastes a number, never reuses a log.
        last = await self._control.ask("HGET", keys.INCARNATIONS, record.name)
        if int(last or 0) <= record.incarnation:
            count = ("HSET", record.name, record.incarnation + 1)
            await self._call_even_if_full(keys.INCARNATIONS, *count)
        logs = (
            keys.stream(record.name, record.incarnation, number)
            for number in range(record.partitions)
        )
        await self._control.ask("HDEL", keys.EPOCHS, *logs)
        return bool(
            await self._control.ask("EVAL", _REMOVE, 1, keys.TOPICS, record.name, _encode(record))
        )

    # --- broker configuration ---

    async def broker_configs(self) -> dict[str, dict[str, str]]:
        """Dynamic configuration by node id; "" holds the default of all brokers."""
        found = pairs(await self._control.ask("HGETALL", keys.CONFIG))
        return {node.decode(): _decode_config(value) for node, value in found.items()}

    async def set_broker_config(
        self, node: str, old: dict[str, str] | None, new: dict[str, str]
    ) -> bool:
        """Compare-and-set: False if the stored configuration is not `old`."""
        if old is None:
            return bool(await self._control.ask("HSETNX", keys.CONFIG, node, _encode(new)))
        words = (node, _encode(old), _encode(new))
        return bool(await self._control.ask("EVAL", _REPLACE, 1, keys.CONFIG, *words))

    async def group_configs(self) -> dict[str, dict[str, str]]:
        """Dynamic configuration of groups, by id."""
        found = pairs(await self._control.ask("HGETALL", keys.GROUP_CONFIGS))
        return {group.decode(): _decode_config(value) for group, value in found.items()}

    async def set_group_config(
        self, group_id: str, old: dict[str, str] | None, new: dict[str, str]
    ) -> bool:
        """Compare-and-set: False if the stored configuration is not `old`. An empty one is
        removed."""
        return await self._set_config(keys.GROUP_CONFIGS, group_id, old, new)

    async def client_metrics_configs(self) -> dict[str, dict[str, str]]:
        """Subscriptions to clients' metrics, by name."""
        found = pairs(await self._control.ask("HGETALL", keys.CLIENT_METRICS_CONFIGS))
        return {name.decode(): _decode_config(value) for name, value in found.items()}

    async def set_client_metrics_config(
        self, name: str, old: dict[str, str] | None, new: dict[str, str]
    ) -> bool:
        """Compare-and-set: False if the stored configuration is not `old`. An empty one is
        removed."""
        return await self._set_config(keys.CLIENT_METRICS_CONFIGS, name, old, new)

    async def _set_config(
        self, key: bytes, name: str, old: dict[str, str] | None, new: dict[str, str]
    ) -> bool:
        if old is None:
            return bool(await self._control.ask("HSETNX", key, name, _encode(new)))
        if not new:
            return bool(await self._control.ask("EVAL", _REMOVE, 1, key, name, _encode(old)))
        words = (name, _encode(old), _encode(new))
        return bool(await self._control.ask("EVAL", _REPLACE, 1, key, *words))

    # --- the format ---

    async def check_format(self) -> None:
        """Raises StoreRefused when the store is not of this version's format.

        A store that was emptied under its workers gets the format of what they write.
        """
        stored = await self._control.ask("GET", keys.FORMAT)
        if stored is not None:
            store_format.check_format(stored)
            return
        for record in await self.all_topics():
            if await self._control.ask("EXISTS", store_format.old_state(record)):
                raise store_format.refuse_old_format()
        await self._call_even_if_full(keys.TOPICS, "HSET", store_format.GUARD, guard_record())
        await self._call_even_if_full(keys.FORMAT, "SET", store_format.CURRENT_VALUE)

    # --- ids ---

    async def cluster_id(self, known: str = "") -> str:
        """The stored cluster id; if there is none, `known` or a new one is stored."""
        return await self._stored_id(keys.CLUSTER, known.encode() or _random_id())

    async def contents_id(self) -> str:
        """An id that is lost with the store's contents: another one means the store was emptied."""
        store_id = self._control.store_id
        if await self._call_even_if_full(keys.CONTENTS, "SETNX", _random_id()):
            await self._call_even_if_full(keys.INCARNATIONS, "HSETNX", FIRST_STORE_ID, store_id)
        value: bytes = await self._control.ask("GET", keys.CONTENTS)
        return value.decode()

    async def has_contents(self, known: str) -> bool:
        return bool(await self._control.ask("GET", keys.CONTENTS) == known.encode())

    async def _stored_id(self, key: bytes, proposed: bytes) -> str:
        await self._call_even_if_full(key, "SETNX", proposed)
        value: bytes = await self._control.ask("GET", key)
        return value.decode()

    async def reseed(self) -> None:
        """The store was emptied or may have lost its tail: give out no number a second time."""
        await self.check_format()
        await self._call_even_if_full(keys.INCARNATIONS, "HSET", FIRST_STORE_ID, "")
        await self._control.ask("EVAL", _RAISE_IDS, 1, keys.PRODUCER_IDS, self._ids_known)

    async def take_producer_ids(self, count: int) -> int:
        """Take `count` consecutive producer ids, which nobody else gets; returns the first."""
        used = -(-count // _IDS_PER_MICROSECOND)
        words = (used, self._ids_known)
        first = int(await self._control.ask("EVAL", _TAKE_IDS, 1, keys.PRODUCER_IDS, *words))
        self._ids_known = first // _IDS_PER_MICROSECOND + used
        return first

    async def _call_even_if_full(self, key: bytes, *words: bytes | str | int) -> Any:
        return await self._control.ask("EVAL", CALL_EVEN_IF_FULL, 1, key, *words)

    # --- changes ---

    async def announce(self, change: Change) -> None:
        """Announce a change to every worker. `change_acks.wait()` waits until they have applied
        it."""
        number = self.change_acks.expect() if change.kind in _ACKNOWLEDGED else None
        if number is None:
            await self._append_change(change)
            return
        try:
            await self._append_change(
                msgspec.structs.replace(change, worker=self._worker, number=number)
            )
        except StoreFault:
            self.change_acks.forget(number)
            raise

    def read_in_order(self, change: Change) -> None:
        """Call this with each entry of the change stream when it is read, before it is applied."""
        if change.kind == "worker":
            self.change_acks.started(change.worker)
        elif change.worker == self._worker:
            self.change_acks.announced(change.number)

    async def acknowledge(self, change: Change) -> None:
        """Report that this worker has applied a change. Works in a full store: the reply waits for
        it."""
        if change.worker not in (-1, self._worker):
            receipt = _encode(Acknowledgement(change.number, self._worker))
            words = ("XADD", "MAXLEN", "~", ACKNOWLEDGEMENTS_KEPT, "*", "a", receipt)
            await self._call_even_if_full(keys.wake(change.worker), *words)

    async def _append_change(self, change: Change) -> None:
        words = ("XADD", "MAXLEN", "~", CHANGES_KEPT, "*", "c", _encode(change))
        await self._call_even_if_full(keys.CHANGES, *words)

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
