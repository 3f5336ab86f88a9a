"""The group coordinator of a worker: runs the effects of its groups, and keeps time for them.

The state machine (`broker/group`) is pure; this is its shell. Effects are run in order: answers go
to the tokens of the handlers, writes to the store and back as `Persisted` events, timers to the
event loop. Offsets are stored over the same connection as groups, then applied.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import msgspec

from broker.errors import ErrorCode, StoreFault
from broker.group.config import GroupConfig, IdGenerator
from broker.group.effects import (
    Answer,
    ArmTimer,
    CancelTimer,
    Effect,
    MemberChanged,
    Persist,
    Reply,
    StateChanged,
)
from broker.group.events import Delete, Event, Persisted, TimerFired
from broker.group.groups import Groups, LoadedGroup
from broker.group.offsets import CommittedOffset, TopicPartition
from broker.group.record import GroupRecord, decode, encode
from broker.group.timers import TimerKey
from broker.placement import slot_of, slots_of
from broker.settings.kafka import BrokerConfig
from broker.store.groups import GroupStore, StoredGroup

logger = logging.getLogger("moldau.coordinator")

LOAD_RETRY_S = 0.5
_T = TypeVar("_T")

_encode_offset = msgspec.msgpack.Encoder().encode
_decode_offset = msgspec.msgpack.Decoder(CommittedOffset).decode


class Token(Protocol):
    """Passed by a handler with a request; the group answers it, at once or later."""

    def answered(self, answer: Answer) -> None: ...


class Spawn(Protocol):
    def __call__(self, work: Coroutine[Any, Any, None]) -> None: ...


class GroupCoordinator:
    def __init__(
        self, store: GroupStore, config: BrokerConfig, spawn: Spawn, *, worker: int, workers: int
    ) -> None:
        self._store = store
        self._spawn = spawn
        self._worker, self._workers = worker, workers
        self._slots = slots_of(worker, workers)
        self._loop = asyncio.get_running_loop()
        # The wall clock once, the monotonic one from then on: a group's time never goes back.
        self._started_ms = time.time_ns() // 1_000_000 - int(self._loop.time() * 1000)
        self._timers: dict[TimerKey, asyncio.TimerHandle] = {}
        # Called with what was stored, before the requests that wait for it are answered.
        self.on_stored: Callable[[str, GroupRecord | None], Awaitable[None]] | None = None
        # Called with every change of state and membership: group events.
        self.on_changed: Callable[[StateChanged | MemberChanged], None] | None = None
        self.commit_counts: dict[str, int] | None = None  # by group id, for group events
        self.groups = Groups(group_config(config), IdGenerator(), slot_of)
        for slot in self._slots:
            self.groups.start_loading(slot)

    def now_ms(self) -> int:
        return self._started_ms + int(self._loop.time() * 1000)

    def use_config(self, config: BrokerConfig) -> None:
        self.groups.use_config(group_config(config))

    # --- events and effects ---

    def submit(self, group_id: str, event: Event) -> None:
        """Pass an event to its group. The token of a request is answered, now or later."""
        self._run(self.groups.handle(group_id, event, self.now_ms()))

    def _run(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            kind = type(effect)
            if kind is Reply:
                reply = cast("Reply", effect)
                cast("Token", reply.call).answered(reply.answer)
            elif kind is ArmTimer:
                self._arm(cast("ArmTimer", effect))
            elif kind is CancelTimer:
                self._timers.pop(cast("CancelTimer", effect).key).cancel()
            elif kind is Persist:
                self._spawn(self._persist(cast("Persist", effect)))
            else:
                self._report(cast("StateChanged | MemberChanged", effect))

    def _arm(self, effect: ArmTimer) -> None:
        armed = self._timers.get(effect.key)
        if armed is not None:
            armed.cancel()
        delay = max(effect.at_ms - self.now_ms(), 0) / 1000
        self._timers[effect.key] = self._loop.call_later(delay, self._fired, effect.key)

    def _fired(self, key: TimerKey) -> None:
        self._timers.pop(key, None)
        self.submit(key.group_id, TimerFired(key))

    async def _persist(self, effect: Persist) -> None:
        slot = slot_of(effect.group_id)
        error = ErrorCode.NONE
        try:
            if effect.record is None:
                await self._store.remove(slot, effect.group_id, effect.identity)
            else:
                record = encode(effect.record)
                await self._store.save(slot, effect.group_id, effect.identity, effect.token, record)
            if self.on_stored is not None:
                await self.on_stored(effect.group_id, effect.record)
        except StoreFault as fault:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            logger.warning("group %s could not be stored: %s", effect.group_id, fault)
        except Exception:
            # A defect of ours. The group must get an outcome, or it could never write again.
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            logger.exception("group %s could not be stored", effect.group_id)
        self.submit(effect.group_id, Persisted(effect.token, error))

    def _report(self, changed: StateChanged | MemberChanged) -> None:
        if self.on_changed is not None:
            self.on_changed(changed)
        if isinstance(changed, StateChanged):
            logger.info(
                "group %s: %s -> %s, generation %d, %d members: %s",
                changed.group_id,
                changed.previous,
                changed.state,
                changed.generation_id,
                changed.members,
                changed.reason,
            )

    # --- offsets ---

    async def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Store what `groups.check_commit` has just allowed, then apply it. Raises StoreFault."""
        fields = {_field(partition): _encode_offset(value) for partition, value in offsets.items()}
        self.groups.commit_begins(group_id, offsets)
        try:
            await self._store.save_offsets(slot_of(group_id), group_id, fields)
        except BaseException:
            self.groups.commit_failed(group_id, offsets)
            raise
        self._run(self.groups.committed(group_id, offsets, self.now_ms()))
        if self.commit_counts is not None:
            self.commit_counts[group_id] = self.commit_counts.get(group_id, 0) + 1

    async def drop_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        dropped = list(partitions)
        await self._store.drop_offsets(group_id, map(_field, dropped))
        offsets = self.groups.offsets.get(group_id)
        if offsets is not None:
            for partition in dropped:
                offsets.remove(*partition)

    def topics(self) -> set[str]:
        """All topics with a committed offset."""
        return {topic for offsets in self.groups.offsets.values() for topic in offsets.topics()}

    async def topic_deleted(self, topic: str) -> None:
        """Remove the offsets of a deleted topic (behaviour 25)."""
        for group_id, offsets in list(self.groups.offsets.items()):
            if partitions := offsets.of_topic(topic):
                await self.drop_offsets(group_id, partitions)

    async def expire(self) -> None:
        """Remove offsets past their retention, and groups of which nothing is left."""
        for group_id in list(self.groups.by_id):
            expired = self.groups.expired_offsets(group_id, self.now_ms())
            if expired:
                logger.info("group %s: %d offsets expired", group_id, len(expired))
                await self.drop_offsets(group_id, expired)
            # However the last offset went: expiry, OffsetDelete, or the deletion of its topic.
            if self.groups.is_forgettable(group_id):
                await self.delete(group_id)

    async def delete(self, group_id: str) -> ErrorCode:
        token = FutureToken(self._loop.create_future())
        self.submit(group_id, Delete(token))
        answer = await token.future
        return answer.error

    # --- loading and unloading ---

    async def load(self) -> None:
        """Load our slots, one by one; each is served as soon as it is loaded (behaviour 26)."""
        await _retry_on_fault("groups", lambda: self._store.take_over(self._worker, self._workers))
        for slot in self._slots:
            stored = await _retry_on_fault(f"slot {slot}", partial(self._store.load, slot))
            found = [_decoded(one) for one in stored]
            for one in found:
                # The worker before us may have died between storing it and this call.
                if self.on_stored is not None and one.record is not None:
                    await self.on_stored(one.group_id, one.record)
            self._run(self.groups.finish_loading(slot, found, self.now_ms()))

    def give_up(self) -> None:
        """The worker stops: parked requests get NOT_COORDINATOR (behaviour 27)."""
        for slot in self._slots:
            self._run(self.groups.give_up(slot, self.now_ms()))


async def _retry_on_fault(what: str, ask: Callable[[], Awaitable[_T]]) -> _T:
    while True:
        try:
            return await ask()
        except StoreFault as fault:
            logger.warning("%s: waiting for the store: %s", what, fault)
            await asyncio.sleep(LOAD_RETRY_S)


class FutureToken:
    """A token whose answer can be awaited."""

    def __init__(self, future: asyncio.Future[Answer]) -> None:
        self.future = future

    def answered(self, answer: Answer) -> None:
        if not self.future.done():
            self.future.set_result(answer)


def group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        min_session_timeout_ms=config.get_int("group.min.session.timeout.ms"),
        max_session_timeout_ms=config.get_int("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config.get_int("group.initial.rebalance.delay.ms"),
        max_size=config.get_int("group.max.size"),
        offset_metadata_max_size=config.get_int("offset.metadata.max.bytes"),
        offsets_retention_ms=config.get_int("offsets.retention.minutes") * 60_000,
    )


def _field(partition: TopicPartition) -> bytes:
    return f"{partition.topic}:{partition.partition}".encode()


def _decoded(stored: StoredGroup) -> LoadedGroup:
    offsets = {}
    for field, value in stored.offsets.items():
        topic, _, partition = field.decode().rpartition(":")
        offsets[TopicPartition(topic, int(partition))] = _decode_offset(value)
    record = None if stored.record is None else decode(stored.record)
    return LoadedGroup(stored.group_id, record, offsets)
