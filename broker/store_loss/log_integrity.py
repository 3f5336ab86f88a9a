"""Keeps offsets unique: reservations, and the check of a log after the store has changed.

A worker appends only below what it has reserved. A reservation is confirmed before anything is
appended under it, so a store that lost its tail still has it. No offset at or above the largest
reservation of a log was ever given out, and a new epoch can begin there.

An offset names one record forever. A log that may have lost entries therefore continues above
every offset that any client has seen, in a new leader epoch. The offsets in between are a recorded
gap.

When the store id changes, every log is unloaded: it neither appends nor answers. Then

1. each worker raises the known end of its logs to the largest end it has seen, and reports that it
   has done so;
2. a log is loaded when it is needed, and checked. It is intact if it was checked under this store
   id before, if nothing was reserved beyond its end (`Reservation`), or if a planned failover
   lost nothing;
3. otherwise it begins a new epoch at the largest offset that is reserved or known. XSETID makes the
   store refuse every append at an older end, whoever sends it;
4. these writes are confirmed, and the log is used again.

What workers remember raises the start of a new epoch, but does not show that a log is intact: a
worker that died may have known more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from moldau.broker.errors import StoreFault
from moldau.broker.placement import leader_of
from moldau.broker.store.confirmation import Confirmation
from moldau.broker.store.log_integrity import IntactCheck, KnownEnd, LogIntegrityStore, Outcome
from moldau.broker.store.store_id import StoreIdentity
from moldau.broker.store_loss.epochs import Epochs

SECONDS_AHEAD = 10
SHORTEST_S = 0.1  # a shorter time is too short to measure a rate


class Reserves(Protocol):
    @property
    def least_reserved(self) -> int: ...
    async def reserve(self, key: bytes, ceiling: int) -> bool: ...


class Reservation:
    """What one worker has reserved of a log: it may use offsets below `ceiling`.

    The reservation is extended when the log reaches `extend_at`.
    """

    __slots__ = ("_at", "_end", "_extending", "_key", "_store", "ceiling", "extend_at")

    def __init__(self, store: Reserves, key: bytes) -> None:
        self._store = store
        self._key = key
        self._extending: asyncio.Task[bool] | None = None
        self.loaded(0, 0)

    def loaded(self, ceiling: int, end: int) -> None:
        """The log was loaded: use what an earlier process of this worker has reserved."""
        self.ceiling = ceiling
        self.extend_at = ceiling - self._store.least_reserved // 2
        self._end, self._at = end, asyncio.get_running_loop().time()

    def extend(self, end: int) -> asyncio.Task[bool]:
        """Reserve ten seconds' worth of offsets after `end`. False: load the log again."""
        if self._extending is None:
            loop = asyncio.get_running_loop()
            self._extending = loop.create_task(self._extend(end, loop.time()))
            self._extending.add_done_callback(self._extended)
        return self._extending

    def _extended(self, task: asyncio.Task[bool]) -> None:
        self._extending = None
        if not task.cancelled():
            task.exception()  # whoever waits gets it; an early extension is tried again

    async def _extend(self, end: int, now: float) -> bool:
        rate = (end - self._end) / max(now - self._at, SHORTEST_S)
        wanted = end + max(self._store.least_reserved, int(rate * SECONDS_AHEAD))
        ceiling = self.ceiling
        if not await self._store.reserve(self._key, wanted):
            return False
        if self.ceiling != ceiling:
            return False  # the log was loaded again meanwhile
        self.ceiling = max(wanted, ceiling)
        self.extend_at = self.ceiling - (wanted - end) // 2
        self._end, self._at = end, now
        return True


logger = logging.getLogger("moldau.log")

# How long a log that needs a new epoch waits for other workers to report their known ends. A worker
# that is stopped must not stop all.
KNOWN_ENDS_WITHIN_S = 2.0
LOOK_AGAIN_S = 0.02
RETRY_S = 0.2
KNOWN_ENDS_AT_ONCE = 256  # commands in one write
# The fewest offsets to reserve ahead: few where a confirmation takes milliseconds.
LEAST_RESERVED, LEAST_RESERVED_IF_SLOW = 1_000, 20_000
FIRST_RESERVED, FIRST_RESERVED_IF_SLOW = 10_000, 100_000  # of a new log, for its leader


class LogIntegrity:
    """Reserves offsets of logs and checks logs, for one worker."""

    def __init__(
        self,
        server: StoreIdentity,
        store: LogIntegrityStore,
        confirmation: Confirmation,
        *,
        worker: int = 0,
        workers: int = 1,
    ) -> None:
        self.worker = worker
        self._server = server
        self._store = store
        self._confirmation = confirmation
        self._workers = workers
        self._known_ends: asyncio.Task[None] | None = None
        # Called with topic, partition, key and epoch of a log that began an epoch: all workers must
        # know it.
        self.on_epoch: Callable[[str, int, bytes, int], Awaitable[None]] | None = None

    @property
    def store_id(self) -> bytes:
        return self._server.store_id

    @property
    def is_kept(self) -> bool:
        """Does the store keep its id when it restarts without a loss?"""
        return self._server.is_kept

    # --- the store has changed ---

    def begin(self, known: Iterable[tuple[bytes, KnownEnd]] = ()) -> None:
        """The worker starts, or the store id has changed. `known`: its logs, by key."""
        if self._known_ends is not None:
            self._known_ends.cancel()
        work = self._report_known_ends(self.store_id, list(known))
        self._known_ends = asyncio.get_running_loop().create_task(work)

    def close(self) -> None:
        if self._known_ends is not None:
            self._known_ends.cancel()

    async def _report_known_ends(
        self, store_id: bytes, known: list[tuple[bytes, KnownEnd]]
    ) -> None:
        """Ends when every worker has reported, or has had the time to."""
        clock = asyncio.get_running_loop().time
        while True:
            try:
                for first in range(0, len(known), KNOWN_ENDS_AT_ONCE):
                    some = known[first : first + KNOWN_ENDS_AT_ONCE]
                    known_ends = (
                        self._store.raise_known_end(key, store_id, known_end)
                        for key, known_end in some
                    )
                    await asyncio.gather(*known_ends)
                deadline = clock() + KNOWN_ENDS_WITHIN_S
                raised = await self._store.known_ends_reported(store_id)
                while raised < self._workers and clock() < deadline:
                    await asyncio.sleep(LOOK_AGAIN_S)
                    raised = await self._store.workers_reported(store_id)
            except StoreFault as fault:
                logger.warning("waiting for the store, to report known log ends: %s", fault)
                await asyncio.sleep(RETRY_S)
            else:
                if raised < self._workers:
                    logger.error(
                        "only %d of %d workers reported their log end offsets: offsets that the "
                        "others gave out may be given out again",
                        *(raised, self._workers),
                    )
                return

    # --- checking logs ---

    async def check_intact(
        self,
        key: bytes,
        last_id: bytes,
        end: int,
        known_end: KnownEnd,
        *,
        nothing_lost: bool = False,
    ) -> IntactCheck:
        """Check a log whose end has been read. One that may have lost entries begins a new epoch,
        unless the caller knows that nothing is lost for good."""
        store_id = self.store_id
        if self._known_ends is not None:
            await asyncio.wait([self._known_ends])
        check = await self._store.check_intact(
            key, store_id, last_id, end, known_end,
            is_intact=nothing_lost or self._is_planned_failover(), reserve=self.least_reserved,
        )  # fmt: skip
        if check.outcome is Outcome.NEW_EPOCH:
            await self._confirmation.confirm()
            await self._store.reservation_confirmed(
                key, store_id, check.start + self.least_reserved
            )
        return check

    def _is_planned_failover(self) -> bool:
        """Did the former master become a replica of this one without a full resynchronisation?

        It would have needed one if it had had anything that this server lacks.
        """
        former, facts = self._server.former_address, self._server.facts
        return (
            former is not None
            and facts.has_online(former)
            and facts.sync_partial_ok > 0
            and facts.sync_full == 0
        )

    async def epoch_begun(self, topic: str, partition: int, key: bytes, epoch: int) -> None:
        if self.on_epoch is not None:
            await self.on_epoch(topic, partition, key, epoch)

    async def epoch_if_intact(self, key: bytes) -> int | None:
        """The leader epoch, if the log is intact under this store id or was deleted; else None."""
        intact_under, epochs = await self._store.intact_under(key)
        if intact_under is not None and intact_under != self.store_id:
            return None
        try:
            return Epochs.parse(epochs).current
        except ValueError:
            return 0  # damaged: whoever uses the log gets the error

    # --- reservations ---

    @property
    def least_reserved(self) -> int:
        return LEAST_RESERVED_IF_SLOW if self._confirmation.is_slow else LEAST_RESERVED

    @property
    def first_reserved(self) -> int:
        return FIRST_RESERVED_IF_SLOW if self._confirmation.is_slow else FIRST_RESERVED

    def of_new_log(self, topic: str, partition: int) -> tuple[bytes, int, int]:
        """The store id, the leader, and how many offsets are reserved for it."""
        return self.store_id, leader_of(topic, partition, self._workers), self.first_reserved

    async def reserve(self, key: bytes, ceiling: int) -> bool:
        """Reserve and confirm. False: the store has changed, load the log again."""
        store_id = self.store_id
        if not await self._store.reserve(key, store_id, ceiling):
            return False
        await self._confirmation.confirm()
        return store_id == self.store_id and await self._store.reservation_confirmed(
            key, store_id, ceiling
        )

    async def release(self, key: bytes) -> None:
        await self._store.release(key, self.store_id)
