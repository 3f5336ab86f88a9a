"""The group coordinator of a worker: runs the effects of its groups, and keeps time for them.

The state machine (`broker/group`) is pure; this is its shell. Effects are run in order: answers go
to the tokens of the handlers, writes to the store and back as `Persisted` events, timers to the
event loop. Offsets are stored over the same connection as groups, then applied; those of open
transactions in `transactional_offsets.py`. Which groups are its own, and how it stays their owner,
is in `slots.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol, cast

from moldau.broker.coordinator.groups.assignment_jobs import Computing
from moldau.broker.coordinator.groups.counters import GroupCounters
from moldau.broker.coordinator.groups.serialization import (
    encode_offset,
    offset_field,
    pending_field,
)
from moldau.broker.coordinator.groups.settings import group_config
from moldau.broker.coordinator.groups.transactional_offsets import TransactionalOffsets
from moldau.broker.coordinator.runtime.recovery import GroupReloading
from moldau.broker.coordinator.runtime.runtime import MachineShell
from moldau.broker.coordinator.runtime.slots import Slots
from moldau.broker.coordinator.runtime.writes import MEND_PATIENCE_S, GroupWrites
from moldau.broker.errors import ErrorCode, SlotNotTaken, StoreFenced
from moldau.broker.group.config import IdGenerator
from moldau.broker.group.effects import (
    Answer,
    Assign,
    Effect,
    MemberChanged,
    Persist,
    Resolve,
    StateChanged,
)
from moldau.broker.group.events import Delete, Event, Request
from moldau.broker.group.groups import Groups
from moldau.broker.group.offsets import CommittedOffset, TopicPartition
from moldau.broker.group.states import GroupState
from moldau.broker.group.topics import NO_TOPICS, TopicsSeen
from moldau.broker.group.unknown import refuse
from moldau.broker.group.views import Owners
from moldau.broker.machine.effects import ArmTimer, CancelTimer, Failed, Reply, TimerFired, TimerKey
from moldau.broker.placement import slot_of, slots_of
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.store.groups import GroupStore

logger = logging.getLogger("moldau.coordinator")


class Token(Protocol):
    """Passed by a handler with a request; the group answers it, at once or later."""

    def answered(self, answer: Answer) -> None: ...

    def failed(self) -> None:
        """`answered` raised an exception: there is no answer."""


class Spawn(Protocol):
    def __call__(self, work: Coroutine[Any, Any, None]) -> None: ...


class GroupCoordinator(MachineShell[TimerKey]):
    what = "group"

    def __init__(
        self,
        store: GroupStore,
        config: BrokerConfig,
        spawn: Spawn,
        *,
        worker: int,
        workers: int,
        topics: TopicsSeen = NO_TOPICS,
    ) -> None:
        super().__init__()
        self._store = store
        self.spawn = spawn
        # The wall clock once, the monotonic one from then on: a group's time never goes back.
        self._started_ms = time.time_ns() // 1_000_000 - int(self._loop.time() * 1000)
        # Called with what was stored, before the requests that wait for it are answered.
        self.on_stored: Callable[[str, Owners | None], Awaitable[None]] | None = None
        # Called with every change of state and membership: group events.
        self.on_changed: Callable[[StateChanged | MemberChanged], None] | None = None
        self.commit_counts: dict[str, int] | None = None  # by group id, for group events
        # Called before offsets of a group without members are moved or removed by somebody else,
        # and whether any of them goes back: group events keep what they were.
        self.on_moving: Callable[[str, bool], None] | None = None
        self.counters = GroupCounters()
        self.groups = Groups(group_config(config), IdGenerator(), slot_of, topics)
        self.computing = Computing(self.submit, self.groups, topics)
        self._slots = Slots(self, store, self.groups, slots_of(worker, workers), worker)
        self._writes = GroupWrites(store, self.groups, self._slots, self.submit, self.stored)
        self._reloading = GroupReloading(self, store, self.groups, self._slots, self._writes)
        self.transactional = TransactionalOffsets(self, store, self.groups, self._slots)

    def now_ms(self) -> int:
        return self._started_ms + int(self._loop.time() * 1000)

    def use_config(
        self, config: BrokerConfig, of_groups: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        """`of_groups`: what is set for single groups, by id."""
        self.groups.use_config(group_config(config, of_groups or {}))

    # --- events and effects ---

    def submit(self, group_id: str, event: Event) -> None:
        """Pass an event to its group. The token of a request is answered, now or later."""
        if isinstance(event, Request):
            self._open[event.call] = group_id, event
        try:
            effects = self.groups.handle(group_id, event, self.now_ms())
        except Exception:
            logger.exception("group %s: %s failed", group_id, type(event).__name__)
            self._failed(group_id)
            return
        self.run(effects)

    def run(self, effects: Iterable[Effect]) -> None:
        work: list[Assign | Resolve] = []
        for effect in effects:
            kind = type(effect)
            if kind is Reply:
                reply = cast("Reply[Answer]", effect)
                self._answer(reply.call, reply.answer)
            elif kind is ArmTimer:
                self._arm(cast("ArmTimer", effect))
            elif kind is CancelTimer:
                self._cancel(cast("CancelTimer", effect).key)
            elif kind is Persist:
                self.spawn(self._writes.persist(cast("Persist", effect)))
            elif kind is Assign or kind is Resolve:
                work.append(cast("Assign | Resolve", effect))
            elif kind is Failed:
                self._unrestored(cast("Failed", effect))
            else:
                self._report(cast("StateChanged | MemberChanged", effect))
        for one in work:  # what comes of it comes behind the other effects
            try:
                self.computing.start(one)
            except Exception:
                group_id = one.name
                logger.exception("group %s: %s failed", group_id, type(one).__name__)
                self._failed(group_id)

    def _unanswered(self, call: Token) -> None:
        call.failed()

    def _refusal(self, request: Request, error: ErrorCode) -> Answer:
        return refuse(request, error)

    def _unrestored(self, effect: Failed) -> None:
        logger.error("group %s cannot be restored", effect.name, exc_info=effect.defect)
        self._reloading.start(effect.name)

    def _owner_of(self, key: TimerKey) -> str:
        return key.name

    def _fired(self, key: TimerKey) -> None:
        self.submit(key.name, TimerFired(key))

    async def persist_now(self, effects: Iterable[Effect]) -> None:
        """Run effects, and wait for their writes. Raises StoreFault."""
        writes = []
        for effect in effects:
            if isinstance(effect, Persist):
                writes.append(effect)
            else:
                self.run((effect,))
        for effect in writes:
            await self._writes.persist_now(effect)

    async def stored(self, group_id: str, owners: Owners | None) -> None:
        if self.on_stored is not None:
            await self.on_stored(group_id, owners)

    def _report(self, changed: StateChanged | MemberChanged) -> None:
        self.counters.changed(changed, self.now_ms())
        if self.on_changed is not None:
            try:
                self.on_changed(changed)
            except Exception:  # nothing depends on it, least of all the effects behind it
                logger.exception("group %s: a change could not be reported", changed.group_id)
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
        slot = slot_of(group_id)
        if not self._slots.is_settled(slot):
            raise SlotNotTaken(f"slot {slot} is being written again")
        fields = {offset_field(place): encode_offset(value) for place, value in offsets.items()}
        if self.on_moving is not None and self._has_no_members(group_id):
            known = self.groups.offsets[group_id]
            back = any(
                (before := known.get(*place)) is not None and value.offset < before.offset
                for place, value in offsets.items()
            )
            self.on_moving(group_id, back)
        overtaken = [pending_field(*one) for one in self.groups.pending.at(group_id, offsets)]
        order = self.groups.commit_begins(group_id, offsets)
        try:
            await self._store.save_offsets(slot, group_id, fields, overtaken)
        except BaseException as fault:
            self.groups.commit_failed(group_id, offsets)
            if isinstance(fault, StoreFenced):
                self._slots.fenced(slot)
            raise
        self.run(self.groups.committed(group_id, offsets, self.now_ms(), order))
        self.count_commit(group_id)

    def _has_no_members(self, group_id: str) -> bool:
        group = self.groups.by_id.get(group_id)
        return group is not None and group.state is GroupState.EMPTY

    def count_commit(self, group_id: str) -> None:
        if self.commit_counts is not None:
            self.commit_counts[group_id] = self.commit_counts.get(group_id, 0) + 1

    async def end_transaction(
        self, slot: int, producer_id: int, producer_epoch: int, number: int, commit: bool
    ) -> None:
        """A marker for the groups of a slot. Raises StoreFault: then it has to be sent again."""
        await self.transactional.end(slot, producer_id, producer_epoch, number, commit=commit)

    async def drop_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Committed ones, and those that open transactions would commit."""
        dropped = list(partitions)
        slot = slot_of(group_id)
        if self.on_moving is not None and dropped:
            self.on_moving(group_id, True)
        offsets = self.groups.offsets.get(group_id)
        while True:
            await self._slots.mended(MEND_PATIENCE_S)
            if self.groups.offsets.get(group_id) is not offsets:
                raise StoreFenced(f"the slot of group {group_id} was given up")
            pending = self.groups.pending.at(group_id, dropped)
            fields = [*map(offset_field, dropped), *(pending_field(*one) for one in pending)]
            try:
                await self._store.drop_offsets(slot, group_id, fields)
            except StoreFenced:
                self._slots.fenced(slot)
            else:
                break
        if offsets is not None:
            for partition in dropped:
                offsets.remove(*partition)
            for place in pending:
                offsets.pending.remove(*place)

    def topics(self) -> set[str]:
        """All topics with an offset that is committed, or that a transaction would commit."""
        found: set[str] = set()
        for offsets in self.groups.offsets.values():
            found.update(offsets.topics())
            found.update(partition.topic for partition in offsets.pending.partitions())
        return found

    async def topic_deleted(self, topic: str) -> None:
        """Remove the offsets of a deleted topic (behaviour 2.25)."""
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
        if self.on_moving is not None and self._has_no_members(group_id):
            self.on_moving(group_id, True)
        token = FutureToken(self._loop.create_future())
        self.submit(group_id, Delete(token))
        answer = await token.future
        return answer.error

    # --- slots ---

    async def load(self) -> None:
        """Load our groups; each slot is served as soon as it is loaded (behaviour 2.26)."""
        await self._slots.load()

    async def store_lost_history(self) -> None:
        """The store came back with another history, or was emptied under us: write again what it
        lost of our groups. Returns when that is done; commits are refused until then."""
        await self._slots.store_lost_history()

    async def written(self, within_s: float) -> None:
        """Before `give_up`: until a store that has just come back has what it lost."""
        await self._slots.written(within_s)

    def give_up(self) -> None:
        """The worker stops: parked requests get NOT_COORDINATOR (behaviour 2.27)."""
        self._slots.give_up()

    @property
    def slots(self) -> Slots:
        """Transactional ids live in them too."""
        return self._slots


class FutureToken:
    """A token whose answer can be awaited."""

    def __init__(self, future: asyncio.Future[Answer]) -> None:
        self.future = future

    def answered(self, answer: Answer) -> None:
        if not self.future.done():
            self.future.set_result(answer)

    def failed(self) -> None:
        self.future.cancel()
