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
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from typing import Any, Protocol, cast

from broker.coordinator.group_counters import GroupCounters
from broker.coordinator.group_settings import group_config
from broker.coordinator.sights import Sights
from broker.coordinator.slices import Slices, Work
from broker.coordinator.slots import Slots
from broker.coordinator.stored import encode_members, encode_offset, offset_field, pending_field
from broker.coordinator.transactional_offsets import TransactionalOffsets
from broker.errors import ErrorCode, SlotNotTaken, StoreFault, StoreFenced, StoreTimeout
from broker.group.config import IdGenerator
from broker.group.effects import (
    Answer,
    ArmTimer,
    Assign,
    CancelTimer,
    Effect,
    MemberChanged,
    Persist,
    Reply,
    Resolve,
    StateChanged,
)
from broker.group.events import (
    Assigned,
    Delete,
    Event,
    Persisted,
    Resolved,
    TimerFired,
    TopicsChanged,
)
from broker.group.groups import Groups
from broker.group.modern import patterns
from broker.group.offsets import CommittedOffset, TopicPartition
from broker.group.record import encode
from broker.group.states import GroupState
from broker.group.timers import TimerKey
from broker.group.topics import NO_TOPICS, Place, TopicsSeen
from broker.group.views import Owners
from broker.placement import slot_of, slots_of
from broker.settings.kafka import BrokerConfig
from broker.store.groups import GroupStore

logger = logging.getLogger("moldau.coordinator")

MEND_PATIENCE_S = 15.0  # for slots to be taken again


class Token(Protocol):
    """Passed by a handler with a request; the group answers it, at once or later."""

    def answered(self, answer: Answer) -> None: ...


class Spawn(Protocol):
    def __call__(self, work: Coroutine[Any, Any, None]) -> None: ...


class GroupCoordinator:
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
        self._store = store
        self.spawn = spawn
        self._loop = asyncio.get_running_loop()
        # The wall clock once, the monotonic one from then on: a group's time never goes back.
        self._started_ms = time.time_ns() // 1_000_000 - int(self._loop.time() * 1000)
        self._timers: dict[TimerKey, asyncio.TimerHandle] = {}
        # Called with what was stored, before the requests that wait for it are answered.
        self.on_stored: Callable[[str, Owners | None], Awaitable[None]] | None = None
        # Called with every change of state and membership: group events.
        self.on_changed: Callable[[StateChanged | MemberChanged], None] | None = None
        self.commit_counts: dict[str, int] | None = None  # by group id, for group events
        # Called before offsets of a group without members are moved or removed by somebody else,
        # and whether any of them goes back: group events keep what they were.
        self.on_moving: Callable[[str, bool], None] | None = None
        self.counters = GroupCounters()
        self._topics = topics
        if not patterns.IS_AVAILABLE:
            logger.warning("google-re2 is not installed: consumers cannot subscribe to expressions")
        self._slices = Slices()
        self._changed_topics: set[str] = set()
        self.groups = Groups(group_config(config), IdGenerator(), slot_of, topics)
        # Given where clients do not see all topics: by group and expression, who may see what.
        self.sights: Sights | None = None
        self._slots = Slots(self, store, self.groups, slots_of(worker, workers), worker)
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
        self.run(self.groups.handle(group_id, event, self.now_ms()))

    def run(self, effects: Iterable[Effect]) -> None:
        work: list[Assign | Resolve] = []
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
                self.spawn(self._persist(cast("Persist", effect)))
            elif kind is Assign or kind is Resolve:
                work.append(cast("Assign | Resolve", effect))
            else:
                self._report(cast("StateChanged | MemberChanged", effect))
        for one in work:  # what comes of it comes behind the other effects
            self._compute(one)

    def _compute(self, effect: Assign | Resolve) -> None:
        """A target, or what expressions stand for: at once if it is little, else in slices."""
        if isinstance(effect, Assign):
            job = effect.job
            what = f"computing the target of group {job.group_id}"

            def assigned(targets: Mapping[str, frozenset[Place]] | None) -> None:
                self.submit(job.group_id, Assigned(job, targets))

            self._slices.start(Work(what, job.steps(), assigned))
            return
        wanted, of_all = effect.patterns, effect.names is None
        what = f"matching the expressions of group {effect.group_id}"

        def resolved(matches: Mapping[str, frozenset[str]] | None) -> None:
            # Valid ones cannot fail; should it happen, they stand for nothing until the next time.
            found = dict.fromkeys(wanted, frozenset[str]()) if matches is None else matches
            self.submit(effect.group_id, Resolved(found, of_all))

        may_see = None
        if self.sights is not None:
            group = self.groups.by_id.get(effect.group_id)
            may_see = self.sights.of_group(effect.group_id, group)
        names = self._topics.names() if effect.names is None else effect.names
        self._slices.start(Work(what, patterns.match_steps(wanted, list(names), may_see), resolved))

    def topic_changed(self, name: str) -> None:
        """A topic was made, deleted, or has more partitions."""
        if not self._changed_topics:
            self._loop.call_soon(self._report_topics)
        self._changed_topics.add(name)

    def _report_topics(self) -> None:
        names, self._changed_topics = frozenset(self._changed_topics), set()
        what = "telling groups of changed topics"
        self._slices.start(Work(what, self._tell_groups(TopicsChanged(names)), lambda _: None))

    def _tell_groups(self, event: TopicsChanged) -> Generator[None, None, None]:
        """One after the other: each may compute a target."""
        for group_id in self.groups.concerned():
            self.submit(group_id, event)
            yield

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
        group = self.groups.by_id.get(effect.group_id)
        while isinstance(fault := await self._write(effect), StoreFenced):
            self._slots.fenced(slot_of(effect.group_id))
            try:
                await self._slots.mended(MEND_PATIENCE_S)
            except StoreTimeout as late:
                fault = late
                break
            if self.groups.by_id.get(effect.group_id) is not group:
                return  # another worker owns it: it was unloaded, and no outcome is waited for
        self._persisted(effect, fault)

    async def persist_now(self, effects: Iterable[Effect]) -> None:
        """Run effects, and wait for their writes. Raises StoreFault."""
        writes = []
        for effect in effects:
            if isinstance(effect, Persist):
                writes.append(effect)
            else:
                self.run((effect,))
        for effect in writes:
            fault = await self._write(effect)
            self._persisted(effect, fault)
            if fault is not None:
                raise fault

    async def _write(self, effect: Persist) -> StoreFault | None:
        slot = slot_of(effect.group_id)
        try:
            if effect.record is None:
                await self._store.remove(slot, effect.group_id, effect.identity)
            else:
                await self._store.save(
                    slot,
                    effect.group_id,
                    effect.identity,
                    effect.token,
                    encode(effect.record),
                    await encode_members(effect.members),
                    whole=effect.whole,
                )
            await self.stored(effect.group_id, effect.owners)
        except StoreFault as fault:
            return fault
        except Exception as defect:
            # Ours. The group must get an outcome, or it could never write again.
            logger.exception("group %s could not be stored", effect.group_id)
            return StoreFault(str(defect))
        return None

    async def stored(self, group_id: str, owners: Owners | None) -> None:
        if self.on_stored is not None:
            await self.on_stored(group_id, owners)

    def _persisted(self, effect: Persist, fault: StoreFault | None) -> None:
        error = ErrorCode.NONE
        if fault is not None:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            logger.warning("group %s could not be stored: %s", effect.group_id, fault)
        self.submit(effect.group_id, Persisted(effect.token, error))

    def _report(self, changed: StateChanged | MemberChanged) -> None:
        self.counters.changed(changed, self.now_ms())
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
        if self.on_moving is not None and self._has_no_members(group_id):
            self.on_moving(group_id, True)
        token = FutureToken(self._loop.create_future())
        self.submit(group_id, Delete(token))
        answer = await token.future
        return answer.error

    # --- slots ---

    async def load(self) -> None:
        """Load our groups; each slot is served as soon as it is loaded (behaviour 26)."""
        await self._slots.load()

    async def store_lost_history(self) -> None:
        """The store came back with another history, or was emptied under us: write again what it
        lost of our groups. Returns when that is done; commits are refused until then."""
        await self._slots.store_lost_history()

    def give_up(self) -> None:
        """The worker stops: parked requests get NOT_COORDINATOR (behaviour 27)."""
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
