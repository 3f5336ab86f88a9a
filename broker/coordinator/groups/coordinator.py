"""The group coordinator of a worker: an adapter of the runtime for groups (`broker/group`).

Offsets are stored over the same connection as groups, then applied; those of open transactions
wait for a marker (`offsets.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from moldau.broker.coordinator.groups.assignment_jobs import AssignmentJobs
from moldau.broker.coordinator.groups.events import GroupCounters
from moldau.broker.coordinator.groups.offsets import GroupOffsets, TransactionalOffsets
from moldau.broker.coordinator.groups.serialization import (
    MemberFields,
    Snapshot,
    encode_members,
    loaded_group,
    offset_fields,
    owners_of,
)
from moldau.broker.coordinator.groups.settings import group_config
from moldau.broker.coordinator.runtime.runtime import AT_ONCE, Runtime, Spawn, Written
from moldau.broker.coordinator.runtime.slots import Slots
from moldau.broker.errors import ErrorCode, StoreFault
from moldau.broker.group.absent_group import refuse
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
from moldau.broker.group.events import ConsumerHeartbeat, Delete, Join, Leave, Request, Sync
from moldau.broker.group.group_base import GroupBase
from moldau.broker.group.groups import Groups
from moldau.broker.group.record import ConsumerRecord, LoadedGroup, encode
from moldau.broker.group.states import GroupState
from moldau.broker.group.topics import NO_TOPICS, TopicLookup
from moldau.broker.group.views import Owners
from moldau.broker.placement import slot_of, slots_of
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.store.groups import GroupStore, StoredFacts

logger = logging.getLogger("moldau.coordinator")

JOBS = (Assign, Resolve)


class ReplyHandle(Protocol):
    """Passed by a handler with a request; the group answers it, at once or later."""

    def answered(self, answer: Answer) -> None: ...

    def failed(self) -> None:
        """`answered` raised an exception: there is no answer."""


class GroupCoordinator(Runtime[Persist]):
    kind = "group"
    requests = frozenset({Join, Sync, Leave, Delete, ConsumerHeartbeat})

    def __init__(
        self,
        store: GroupStore,
        config: BrokerConfig,
        spawn: Spawn,
        *,
        worker: int,
        workers: int,
        topics: TopicLookup = NO_TOPICS,
    ) -> None:
        self._store = store
        # Called after each write. Requests that wait for the write also wait for the awaitable that
        # it may return.
        self.on_stored: Callable[[str, Owners | None], Awaitable[None] | None] | None = None
        # Called with every change of state and membership: group events.
        self.on_changed: Callable[[StateChanged | MemberChanged], None] | None = None
        self.counters = GroupCounters()
        self.groups = Groups(group_config(config), IdGenerator(), slot_of, topics)
        self.jobs = AssignmentJobs(self.submit, self.groups, topics)
        super().__init__(self.groups, Slots(store, slots_of(worker, workers), worker, spawn), spawn)
        self.offsets = GroupOffsets(self, store)
        self.transactional = TransactionalOffsets(self, store)

    def use_config(
        self, config: BrokerConfig, of_groups: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        """`of_groups`: the settings of single groups, by id."""
        self.groups.use_config(group_config(config, of_groups or {}))

    async def delete(self, group_id: str) -> ErrorCode:
        self.offsets.note_removal(group_id)
        handle = FutureReplyHandle(self._loop.create_future())
        self.submit(group_id, Delete(handle))
        answer = await handle.future
        return answer.error

    # --- effects ---

    def runners(self) -> dict[type, Callable[[Any], None]]:
        return {
            Persist: self.writes.persist,
            Assign: self.jobs.assign,
            Resolve: self.jobs.resolve,
            StateChanged: self._report,
            MemberChanged: self._report,
        }

    def run(self, effects: Iterable[Effect]) -> None:
        # Jobs come last: a small one ends at once, and its result must find the others run.
        super().run(sorted(effects, key=lambda effect: type(effect) in JOBS))

    def refusal(self, request: Request, error: ErrorCode) -> Answer:
        return refuse(request, error)

    def unanswered(self, call: ReplyHandle) -> None:
        call.failed()

    def _report(self, changed: StateChanged | MemberChanged) -> None:
        self.counters.changed(changed, self.now_ms())
        if self.on_changed is not None:
            try:
                self.on_changed(changed)
            except Exception:  # nothing depends on it
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

    # --- writing ---

    def write(self, effect: Persist, done: Written) -> None:
        fields: MemberFields = {}
        members = iter(effect.members.items())
        try:
            if effect.record is not None and encode_members(fields, members):
                self._save(effect, fields, done)
            else:
                self.spawn(self._write_later(effect, fields, members, done))
        except Exception as defect:
            self._loop.call_soon(done, self._not_written(effect, defect))

    def _save(self, effect: Persist, fields: MemberFields, done: Written) -> None:
        assert effect.record is not None
        self._store.save(
            slot_of(effect.name),
            effect.name,
            effect.identity,
            effect.revision,
            encode(effect.record),
            fields,
            partial(self._saved, effect, done),
            generation=effect.record.generation_id,
            whole=effect.whole,
        )

    def _saved(self, effect: Persist, done: Written, fault: StoreFault | None) -> None:
        sharing = None
        if fault is None:
            try:
                sharing = self._stored(effect.name, effect.owners)
            except Exception as defect:
                fault = self._not_written(effect, defect)
        if sharing is None:
            done(fault)
        else:
            self.spawn(self._share(effect, sharing, done))

    async def _write_later(
        self,
        effect: Persist,
        fields: MemberFields,
        members: Iterator[tuple[str, Snapshot | None]],
        done: Written,
    ) -> None:
        """Encode many members in portions, or remove a group."""
        try:
            if effect.record is not None:
                while not encode_members(fields, members):  # noqa: ASYNC110
                    await asyncio.sleep(0)
                self._save(effect, fields, done)
                return
            await self._store.remove(slot_of(effect.name), effect.name, effect.identity)
        except StoreFault as fault:
            done(fault)
        except Exception as defect:
            done(self._not_written(effect, defect))
        else:
            self._saved(effect, done, None)

    async def _share(self, effect: Persist, sharing: Awaitable[None], done: Written) -> None:
        """Answers wait until members of native topics are known to all workers."""
        outcome: StoreFault | None = None
        try:
            await sharing
        except StoreFault as fault:
            outcome = fault
        except Exception as defect:
            outcome = self._not_written(effect, defect)
        done(outcome)

    def _not_written(self, effect: Persist, defect: Exception) -> StoreFault:
        """Report a defect of ours. The group must get an outcome, or it could never write again."""
        logger.error("group %s could not be stored", effect.name, exc_info=defect)
        return StoreFault(str(defect))

    def _stored(self, group_id: str, owners: Owners | None) -> Awaitable[None] | None:
        return None if self.on_stored is None else self.on_stored(group_id, owners)

    async def _announce(self, group_id: str) -> None:
        """Report who has which partitions in a group that was restored."""
        group = self.groups.by_id.get(group_id)
        if group is not None:
            sharing = self._stored(group_id, Owners(group.subscribed_topics(), group.owners))
            if sharing is not None:
                await sharing

    # --- loading ---

    async def read(self, slot: int) -> list[LoadedGroup]:
        found = [loaded_group(one) for one in await self._store.load(slot)]
        for one in found:
            # The worker before us may have died between storing it and this call.
            owners = owners_of(one)
            sharing = None if owners is None else self._stored(one.group_id, owners)
            if sharing is not None:
                await sharing
        newest = max((one.record.generation_id for one in found if one.record), default=0)
        try:
            await self._store.note_generation(slot, newest)
        except StoreFault as fault:  # without it the next floor is the minutes since 2020
            logger.warning("slot %d: its highest generation is not noted: %s", slot, fault)
        return found

    async def loaded(self, slot: int, found: list[LoadedGroup]) -> None:
        floor = self._store.min_generation(slot)
        self.run(self.groups.finish_loading(slot, found, self.now_ms(), floor))
        for one in found:
            if isinstance(one.record, ConsumerRecord):
                await self._announce(one.group_id)

    async def read_one(self, slot: int, name: str) -> LoadedGroup:
        return loaded_group(await self._store.load_group(slot, name))

    def restore_one(self, name: str, found: LoadedGroup, *, is_stale: bool) -> list[Effect]:
        floor = self._store.min_generation(slot_of(name))
        effects = self.groups.finish_reloading(found, self.now_ms(), floor)
        self.spawn(self._announce(name))
        return effects

    # --- writing again ---

    async def write_again(self, slot: int) -> int:
        written = 0
        listed = await self._store.index(slot)
        groups = self.groups.of_slot(slot)
        for start in range(0, len(groups), AT_ONCE):
            some = groups[start : start + AT_ONCE]
            facts = await self._store.facts([(slot, group.group_id) for group in some])
            outcomes = await asyncio.gather(
                *(self._write_group(slot, *pair) for pair in zip(some, facts, strict=True))
            )
            written += sum(outcomes)
        for group_id in listed:
            if group_id not in self.groups.offsets:  # its deletion was lost
                (facts_of_it,) = await self._store.facts([(slot, group_id)])
                identity = (facts_of_it.identity or b"").decode()
                await self._store.remove(slot, group_id, identity)
                written += 1
        return written

    async def _write_group(self, slot: int, group: GroupBase, stored: StoredFacts) -> bool:
        """Whether anything differed."""
        group_id = group.group_id
        if self.groups.by_id.get(group_id) is not group or group.state is GroupState.DEAD:
            return False
        known = offset_fields(self.groups.offsets[group_id])
        lost = dict(known.items() - stored.offsets.items())
        removed = stored.offsets.keys() - known.keys()
        if lost:
            await self._store.save_offsets(slot, group_id, lost)
        if removed:
            await self._store.drop_offsets(slot, group_id, removed)
        is_stored = stored[:2] == (group.identity.encode(), group.revision)
        if not is_stored:  # behind a write in flight, which may have come before the loss
            await self.writes.persist_now(group.store_again(self.now_ms()))
        return bool(lost or removed or not is_stored)


class FutureReplyHandle:
    """A reply handle whose answer can be awaited."""

    def __init__(self, future: asyncio.Future[Answer]) -> None:
        self.future = future

    def answered(self, answer: Answer) -> None:
        if not self.future.done():
            self.future.set_result(answer)

    def failed(self) -> None:
        self.future.cancel()
