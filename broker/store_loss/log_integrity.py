"""A store that may have lost its tail: how a worker goes on when the store began a new integrity.

An offset names one record for ever. So a log that may have lost entries goes on above every offset
any client has seen, in a new leader epoch; what is missing in between is a recorded gap.

When the store_id of the store changes (`store/log_integrity.py`) every log is unloaded: it neither appends
nor answers. Then

1. each worker raises the `floor` of the logs it knows to the largest end it has known, and says so;
2. a log is loaded when it is needed, and proved: it was proved under this store_id before, or nothing
   was reserved beyond its end (`reservation.py`), or a planned failover lost nothing;
3. otherwise it begins a new epoch at its ceiling, the largest offset reserved or known. XSETID
   makes the store refuse every append at an older end, whoever sends it;
4. what was written is confirmed, and the log is used again.

The memory of workers raises the ceiling but is no proof: a worker that died may have known more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from moldau.broker.errors import StoreFault
from moldau.broker.placement import leader_of
from moldau.broker.store.confirmation import Confirmation
from moldau.broker.store.log_integrity import Floor, LogIntegrityStore, Outcome, Proof
from moldau.broker.store.store_id import StoreIdentity
from moldau.broker.store_loss.epochs import Epochs

logger = logging.getLogger("moldau.log")

# How long a log that needs a new epoch waits for other workers to say what they knew. One that is
# stopped must not stop all.
FLOORS_WITHIN_S = 2.0
LOOK_AGAIN_S = 0.02
RETRY_S = 0.2
FLOORS_AT_ONCE = 256  # commands in one write
# Offsets reserved ahead, at least: few where a confirmation takes milliseconds.
LEAST_RESERVED, LEAST_RESERVED_IF_SLOW = 1_000, 20_000
FIRST_RESERVED, FIRST_RESERVED_IF_SLOW = 10_000, 100_000  # of a new log, for its leader


class LogIntegrity:
    """The integrity of the store, as far as the logs of one worker are concerned."""

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
        self._floors: asyncio.Task[None] | None = None
        # Called with a log that began an epoch: all workers must know it.
        self.on_epoch: Callable[[str, int, bytes, int], Awaitable[None]] | None = None

    @property
    def store_id(self) -> bytes:
        return self._server.store_id

    @property
    def is_kept(self) -> bool:
        """Does the store keep its store_id when it restarts as it was?"""
        return self._server.is_kept

    # --- a new integrity ---

    def begin(self, known: Iterable[tuple[bytes, Floor]] = ()) -> None:
        """The worker starts, or the store_id changed. `known`: the logs it knew, by key."""
        if self._floors is not None:
            self._floors.cancel()
        work = self._raise_floors(self.store_id, list(known))
        self._floors = asyncio.get_running_loop().create_task(work)

    def close(self) -> None:
        if self._floors is not None:
            self._floors.cancel()

    async def _raise_floors(self, store_id: bytes, known: list[tuple[bytes, Floor]]) -> None:
        """Ends when every worker has raised its floors, or has had the time to."""
        clock = asyncio.get_running_loop().time
        while True:
            try:
                for first in range(0, len(known), FLOORS_AT_ONCE):
                    some = known[first : first + FLOORS_AT_ONCE]
                    floors = (self._store.raise_floor(key, store_id, floor) for key, floor in some)
                    await asyncio.gather(*floors)
                deadline = clock() + FLOORS_WITHIN_S
                raised = await self._store.floors_are_raised(store_id)
                while raised < self._workers and clock() < deadline:
                    await asyncio.sleep(LOOK_AGAIN_S)
                    raised = await self._store.floors_raised(store_id)
            except StoreFault as fault:
                logger.warning("a new integrity of the store waits for it: %s", fault)
                await asyncio.sleep(RETRY_S)
            else:
                if raised < self._workers:
                    logger.error(
                        "only %d of %d workers said how far they knew the logs: offsets that "
                        "another one gave out may be given out again",
                        *(raised, self._workers),
                    )
                return

    # --- proving logs ---

    async def prove(self, key: bytes, last_id: bytes, end: int, floor: Floor) -> Proof:
        """Begin this integrity for a log whose end has been read. A new epoch is confirmed."""
        store_id = self.store_id
        if self._floors is not None:
            await asyncio.wait([self._floors])
        proof = await self._store.prove(
            key, store_id, last_id, end, floor,
            proved=self._is_planned_failover(), reserve=self.least_reserved,
        )  # fmt: skip
        if proof.outcome is Outcome.NEW_EPOCH:
            await self._confirmation.confirm()
            await self._store.reservation_confirmed(
                key, store_id, proof.start + self.least_reserved
            )
        return proof

    def _is_planned_failover(self) -> bool:
        """Is the former master online under this one without a full resynchronisation?

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

    async def epoch_if_proved(self, key: bytes) -> int | None:
        """The leader epoch of a log that is proved in this integrity, or was deleted; else None."""
        proved_under, epochs = await self._store.proved(key)
        if proved_under is not None and proved_under != self.store_id:
            return None
        try:
            return Epochs.parse(epochs).current
        except ValueError:
            return 0  # damaged: whoever uses the log will be told

    # --- reservations ---

    @property
    def least_reserved(self) -> int:
        return LEAST_RESERVED_IF_SLOW if self._confirmation.is_slow else LEAST_RESERVED

    @property
    def first_reserved(self) -> int:
        return FIRST_RESERVED_IF_SLOW if self._confirmation.is_slow else FIRST_RESERVED

    def of_new_log(self, topic: str, partition: int) -> tuple[bytes, int, int]:
        """Token, leader and how many offsets are reserved for it."""
        return self.store_id, leader_of(topic, partition, self._workers), self.first_reserved

    async def reserve(self, key: bytes, ceiling: int) -> bool:
        """Reserve and confirm. False: the log belongs to another integrity, load it again."""
        store_id = self.store_id
        if not await self._store.reserve(key, store_id, ceiling):
            return False
        await self._confirmation.confirm()
        return store_id == self.store_id and await self._store.reservation_confirmed(
            key, store_id, ceiling
        )

    async def release(self, key: bytes) -> None:
        await self._store.release(key, self.store_id)
