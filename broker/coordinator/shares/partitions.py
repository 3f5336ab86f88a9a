"""The share-partitions that this worker leads: taken from the store, written to it, timed, dropped.

A share-partition is taken when it is first fetched from: that begins a term, and loads its state.
It is taken again on every new connection, and its memory stays if nobody else has had it since.
Writes are scheduled at the end of a turn of the event loop, so that what comes in one turn is
stored together, and there is one in flight for each share-partition.

An exception in the middle of a change leaves a machine in a state that no rule describes: it is
dropped, who waits is refused, and the next fetch takes what is stored. No worker builds this yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar, cast

from moldau.broker.errors import ErrorCode, KafkaError, StoreFault, StoreFenced
from moldau.broker.placement import slot_of
from moldau.broker.share.acknowledging import Batch
from moldau.broker.share.acquiring import Acquired
from moldau.broker.share.effects import Decided, Effect
from moldau.broker.share.limits import ShareLimits, Wish
from moldau.broker.share.partition import SharePartition
from moldau.broker.share.spans import Read
from moldau.broker.share.state import CorruptState
from moldau.broker.store.shares import SharePlace, ShareStore, Term

logger = logging.getLogger("moldau.coordinator")

# Two processes that both think a share-partition theirs must not take it from each other in a loop.
TAKE_BACK_S = 1.0
# A timer that is later than this was held up by the worker itself. What its members sent meanwhile
# waits in sockets, and is to be read before their locks end.
LATE_MS = 1_000
GRACE_MS = 1_000

Done = Callable[[ErrorCode], None]
T = TypeVar("T")


class ShareKey(NamedTuple):
    group_id: str
    place: SharePlace


class Led:
    """A share-partition of which this worker has begun a term."""

    __slots__ = (
        "due_ms",
        "ends_when_stored",
        "flush",
        "is_dropped",
        "is_reading",
        "is_scheduled",
        "key",
        "landing",
        "machine",
        "term",
        "timer",
    )

    def __init__(self, key: ShareKey, term: Term, machine: SharePartition) -> None:
        self.key = key
        self.term = term
        self.machine = machine
        self.is_dropped = False
        self.is_reading = False
        """A read from the store is under way: there is one at a time."""
        self.ends_when_stored = False
        """Nobody reads it any more: it is dropped after its last write."""
        self.is_scheduled = False
        self.flush: asyncio.TimerHandle | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.due_ms = 0
        """When the timer is to fire."""
        self.landing: list[asyncio.Future[StoreFault | None]] = []
        """Who waits for the end of the write in flight."""


class SharePartitions:
    """`on_woken` is called when something may be acquired that could not be before, `on_effect`
    with what else a machine tells."""

    def __init__(
        self,
        store: ShareStore,
        limits_of: Callable[[str], ShareLimits],
        start_of: Callable[[ShareKey], Awaitable[int]],
    ) -> None:
        """`start_of` resolves where a new share-partition begins (`share.auto.offset.reset`)."""
        self._store = store
        self._limits_of = limits_of
        self._start_of = start_of
        self._loop = asyncio.get_running_loop()
        self._led: dict[ShareKey, Led] = {}
        self._taking: dict[ShareKey, asyncio.Task[Led]] = {}
        self._retaking: set[asyncio.Task[None]] = set()
        self._not_before: dict[ShareKey, float] = {}
        self.on_woken: Callable[[Led], None] = lambda led: None
        self.on_effect: Callable[[ShareKey, Effect], None] = lambda key, effect: None
        store.on_reconnected = self._reconnected

    def __len__(self) -> int:
        return len(self._led)

    @property
    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    # --- taking ---

    def ready(self, key: ShareKey) -> Led | None:
        """Return a share-partition that is led on the present connection."""
        led = self._led.get(key)
        if led is None or not self._store.is_current(led.term) or key in self._taking:
            return None
        led.ends_when_stored = False
        return led

    async def take(self, key: ShareKey) -> Led:
        """Return a share-partition, taken if needed; its start is stored.

        Raises StoreFault, or KafkaError: UNKNOWN_TOPIC_OR_PARTITION if there is no such share
        group, NOT_LEADER_OR_FOLLOWER if it was just lost to another worker.
        """
        led = self.ready(key)
        return led if led is not None else await self._take_once(key)

    async def _take_once(self, key: ShareKey) -> Led:
        task = self._taking.get(key)
        if task is None:
            task = self._taking[key] = self._loop.create_task(self._take(key))
            task.add_done_callback(partial(self._taken, key))
        # The task goes on for the others if one that waits is cancelled.
        return await asyncio.shield(task)

    def _taken(self, key: ShareKey, task: asyncio.Task[Led]) -> None:
        del self._taking[key]
        fault = None if task.cancelled() else task.exception()
        led = self._led.get(key)
        if led is not None:
            if fault is not None:
                self._fail_writes(led)
            self._schedule(led)

    async def _take(self, key: ShareKey) -> Led:
        if self._not_before.get(key, 0.0) > self._loop.time():
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._not_before.pop(key, None)
        known = self._led.get(key)
        held = None if known is None else known.term
        taken = await self._store.take(slot_of(key.group_id), key.group_id, key.place, held)
        if known is not None and known.is_dropped:  # meanwhile: its memory must not come back
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if taken is None:
            self._drop_known(known, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if known is not None and taken.is_kept:
            led = known
            led.term = taken.term
        else:
            self._drop_known(known, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            led = self._led[key] = Led(key, taken.term, self._restored(key, taken.state))
        if not led.machine.is_resolved:
            start = await self._start_of(key)
            if led.is_dropped:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            led.machine.resolve(start)
        # Memory may be newer than the store, which may have lost its tail; and a start must be
        # stored before anything is delivered.
        fault = await self._write_now(led)
        if isinstance(fault, StoreFenced):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if fault is not None:
            raise fault
        return led

    def _restored(self, key: ShareKey, stored: bytes) -> SharePartition:
        try:
            return SharePartition(stored)
        except CorruptState as fault:
            logger.error(  # noqa: TRY400
                "the state of %s:%d in share group %s cannot be read, and is left as it is (%s): "
                "reset the group's offsets to begin again",
                key.place.topic_id.hex(), key.place.partition, key.group_id, fault,
            )  # fmt: skip
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) from None

    def _drop_known(self, led: Led | None, code: ErrorCode) -> None:
        if led is not None:
            self.drop(led, code)

    def _reconnected(self) -> None:
        """Take those again that have something to store; the others when they are fetched from."""
        for led in self._led.values():
            self._schedule(led)

    # --- what handlers do ---

    def wanted(self, led: Led) -> int | None:
        """Return the offset from which on to read; None if there is nothing to acquire. Raises
        KafkaError if it was dropped."""
        if led.is_dropped:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return led.machine.wanted(self._limits_of(led.key.group_id))

    def acquire(self, led: Led, read: Read, member: str, wish: Wish) -> Acquired | None:
        return self._guarded(
            led,
            lambda limits, now_ms: led.machine.acquire(read, member, wish, limits, now_ms),
        )

    def acknowledge(self, led: Led, member: str, batches: Sequence[Batch], done: Done) -> None:
        """Take acknowledgements; `done` gets the outcome, at once or when it is stored."""

        def step(limits: ShareLimits, now_ms: int) -> ErrorCode | None:
            return led.machine.acknowledge(done, member, batches, limits, now_ms)

        if led.is_dropped:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        try:
            code = self._guarded(led, step)
        except KafkaError as fault:
            done(fault.code)
            return
        if code is not None:
            done(code)

    def leave(self, group_id: str, member: str) -> None:
        """Release what a member has: its session is over."""
        for led in self._of_group(group_id):
            with suppress(KafkaError):  # it is dropped, and what the member had is free
                self._guarded(led, partial(led.machine.leave, member))

    def log_start_moved(self, led: Led, offset: int) -> None:
        self._guarded(led, lambda _, now_ms: led.machine.log_start_moved(offset, now_ms))

    def _of_group(self, group_id: str) -> list[Led]:
        return [led for key, led in self._led.items() if key.group_id == group_id]

    def _guarded(self, led: Led, step: Callable[[ShareLimits, int], T]) -> T:
        """Change a machine, and see to what follows. Raises KafkaError if it is gone, or failed."""
        if led.is_dropped:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        try:
            result = step(self._limits_of(led.key.group_id), self.now_ms)
        except Exception:
            logger.exception("a share-partition of group %s failed", led.key.group_id)
            self.drop(led, ErrorCode.KAFKA_STORAGE_ERROR)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) from None
        self._changed(led)
        return result

    def _changed(self, led: Led) -> None:
        self._run_effects(led)
        self._arm(led)
        self._schedule(led)
        if led.machine.is_woken and not led.is_dropped:
            led.machine.is_woken = False
            self.on_woken(led)

    def _run_effects(self, led: Led) -> None:
        for effect in led.machine.take_effects():
            if isinstance(effect, Decided):
                done = cast("Done", effect.call)
                done(effect.code)
            else:
                self.on_effect(led.key, effect)

    # --- locks ---

    def _arm(self, led: Led) -> None:
        """Lazy: a timer that is armed for an earlier time stays."""
        due_ms = led.machine.next_deadline()
        if due_ms is None or led.is_dropped:
            return
        if led.timer is not None:
            if led.due_ms <= due_ms:
                return
            led.timer.cancel()
        led.due_ms = due_ms
        led.timer = self._loop.call_at((due_ms + 1) / 1000, self._timer_fired, led)

    def _timer_fired(self, led: Led) -> None:
        led.timer = None
        late_ms = self.now_ms - led.due_ms
        with suppress(KafkaError):  # it is dropped, and who waited was told
            if late_ms > LATE_MS:
                self._guarded(led, lambda _, now_ms: led.machine.postpone(late_ms + GRACE_MS))
            else:
                self._guarded(led, led.machine.expire)

    # --- writing ---

    def _schedule(self, led: Led) -> None:
        machine = led.machine
        if led.is_dropped or led.is_scheduled or machine.is_saving:
            return
        at_ms = machine.save_at()
        if at_ms is None:
            if led.ends_when_stored:
                self.drop(led, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif at_ms <= self.now_ms:
            led.is_scheduled = True
            self._loop.call_soon(self._begin_write, led)
        elif led.flush is None:
            led.flush = self._loop.call_at(at_ms / 1000, self._flush_due, led)

    def _flush_due(self, led: Led) -> None:
        led.flush = None
        self._schedule(led)

    def _begin_write(self, led: Led) -> None:
        led.is_scheduled = False
        if led.is_dropped or led.machine.is_saving or led.key in self._taking:
            return  # what takes it writes it
        if self._store.is_current(led.term):
            self._send(led)
        elif self._store.is_up:
            task = self._loop.create_task(self._retake(led.key))
            self._retaking.add(task)
            task.add_done_callback(self._retaking.discard)
        else:
            self._fail_writes(led)

    async def _retake(self, key: ShareKey) -> None:
        with suppress(StoreFault, KafkaError):  # who waits was refused: see `_taken`
            await self._take_once(key)

    def _send(self, led: Led) -> None:
        if led.flush is not None:
            led.flush.cancel()
            led.flush = None
        self._store.save(led.term, led.machine.begin_save(), partial(self._written, led))

    async def _write_now(self, led: Led) -> StoreFault | None:
        """Write what there is, behind what is being written, and return the outcome."""
        if led.machine.is_saving:
            await self._landing(led)
        if led.is_dropped:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._send(led)
        return await self._landing(led)

    def _landing(self, led: Led) -> asyncio.Future[StoreFault | None]:
        future: asyncio.Future[StoreFault | None] = self._loop.create_future()
        led.landing.append(future)
        return future

    def _written(self, led: Led, fault: StoreFault | None) -> None:
        if not led.is_dropped:
            if fault is None:
                led.machine.saved()
            elif isinstance(fault, StoreFenced):
                self._not_before[led.key] = self._loop.time() + TAKE_BACK_S
                self.drop(led, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            else:
                self._failed(led)
            self._changed(led)
        waiting, led.landing = led.landing, []
        for future in waiting:
            if not future.done():
                future.set_result(fault)

    def _fail_writes(self, led: Led) -> None:
        """Refuse what waits for a write: the store is away."""
        if not led.is_dropped and not led.machine.is_saving and led.machine.save_at() is not None:
            led.machine.begin_save()
            self._failed(led)
            self._changed(led)

    def _failed(self, led: Led) -> None:
        limits = self._limits_of(led.key.group_id)
        led.machine.save_failed(ErrorCode.KAFKA_STORAGE_ERROR, limits, self.now_ms)

    # --- dropping ---

    def drop(self, led: Led, code: ErrorCode) -> None:
        """Forget a share-partition; who waits for its write gets this code."""
        if led.is_dropped:
            return
        led.is_dropped = True
        if self._led.get(led.key) is led:
            del self._led[led.key]
        for handle in (led.timer, led.flush):
            if handle is not None:
                handle.cancel()
        led.machine.refuse_all(code)
        self._run_effects(led)
        self.on_woken(led)  # who is parked there learns of it

    def drop_group(self, group_id: str, code: ErrorCode) -> None:
        """Forget those of a group that was deleted, or whose offsets were changed."""
        for led in self._of_group(group_id):
            self.drop(led, code)

    def drop_topic(self, topic_id: bytes) -> None:
        for led in [led for key, led in self._led.items() if key.place.topic_id == topic_id]:
            self.drop(led, ErrorCode.UNKNOWN_TOPIC_ID)

    def let_go(self, group_id: str) -> None:
        """Forget those of a group that nobody reads here any more, after their last write."""
        for led in self._of_group(group_id):
            led.ends_when_stored = True
            self._schedule(led)

    def close(self) -> None:
        """Forget all: the worker stops."""
        for task in (*self._taking.values(), *self._retaking):
            task.cancel()
        for led in list(self._led.values()):
            self.drop(led, ErrorCode.NOT_LEADER_OR_FOLLOWER)
