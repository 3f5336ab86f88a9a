"""The shell of a partition's writer: runs its effects against the store, and saves snapshots."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from moldau.broker.errors import StoreDown, StoreFault, StoreFull
from moldau.broker.log.reading.reader import LogReader
from moldau.broker.log.reading.waiters import Waiters
from moldau.broker.log.state.loading import Loading
from moldau.broker.log.writing.append import InFlightEntry
from moldau.broker.log.writing.phases import Phase
from moldau.broker.log.writing.verification import Verifies
from moldau.broker.log.writing.writer import PartitionWriter
from moldau.broker.metrics.log_counters import LogCounters
from moldau.broker.metrics.loop_clock import loop_clock
from moldau.broker.store.pipe import resolve, within
from moldau.broker.store.replication import NEVER, Replication
from moldau.broker.store.resp import append_prefix
from moldau.broker.store.streams import Streams
from moldau.broker.store_loss.log_integrity import LogIntegrity
from moldau.broker.store_loss.reservation import Reservation

logger = logging.getLogger("moldau.log")

INDEX_EVERY = 1 << 20
SNAPSHOT_BYTES = 64 << 20
REPLICATED_WITHIN_S = 5.0
RETRY_S = 0.25  # the store is up and refuses to answer: it is loading its file, say


class WriterHost(Verifies, Protocol):
    """What a writer needs of the worker it lives in."""

    streams: Streams
    integrity: LogIntegrity
    replication: Replication
    snapshot_entries: int
    counters: LogCounters

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...
    def producers_kept_ms(self) -> int: ...
    def store_full(self, fault: StoreFull) -> None: ...
    def transactions_left_open(self, topic: str, partition: int) -> None:
        """A log with open transactions was loaded that once began a new leader epoch."""


class WriterShell:
    """`wake_leader`: the command that notifies the leader of an append; None when it is us."""

    def __init__(
        self,
        host: WriterHost,
        reader: LogReader,
        waiters: Waiters,
        wake_leader: bytes | None,
        on_gone: Callable[[], None],
    ) -> None:
        self._host = host
        self._streams = host.streams
        self._reader = reader
        self._wake_leader = wake_leader
        self.stream_missing = on_gone
        self._prefix = append_prefix(reader.key)
        self._snapshot_size = 0
        self._reservation = Reservation(host.integrity, reader.key)
        self._reserving: asyncio.Task[bool] | None = None
        self.writer = PartitionWriter(
            self,
            reader,
            waiters,
            host.replication,
            self._reservation,
            host,
            time.monotonic,
            host.counters.topic(reader.topic).refused,
        )
        self.end_turn = partial(asyncio.get_running_loop().call_soon, self.writer.turn_ended)

    # --- appending ---

    def send(self, entry: InFlightEntry) -> None:
        entry.sent_ns = loop_clock.now_ns
        if entry.even_if_full:
            blob = b"".join(entry.parts)
            self._streams.append_even_if_full(
                self._reader.key, entry.base, blob, self.writer.replied
            )
            self.wake_leader()
            return
        self._streams.append(
            self._prefix,
            entry.base,
            entry.parts,
            entry.size,
            entry.nonce,
            self._wake_leader,
            self.writer.replied,
        )

    def wake_leader(self) -> None:
        if self._wake_leader is not None:
            self._streams.wake(self._wake_leader)

    def appended(self, entry: InFlightEntry) -> None:
        host, state = self._host, self._reader.state
        counters = host.counters
        counters.append[(loop_clock.now_ns - entry.sent_ns).bit_length()] += 1
        counters.batches[len(entry.appends).bit_length()] += 1
        size = state.size
        if size // INDEX_EVERY != (size - entry.size) // INDEX_EVERY:
            self._streams.index(self._reader.key, state.max_timestamp, state.end, size)
        if (
            self.writer.entries_unsaved >= host.snapshot_entries
            or size - self._snapshot_size >= SNAPSHOT_BYTES
        ):
            host.spawn(self.save_snapshot())

    def conflict(self) -> None:
        self._host.counters.conflicts += 1

    def refused(self, entry: InFlightEntry, fault: BaseException) -> None:
        if isinstance(fault, StoreFull):
            self._host.store_full(fault)
        elif not isinstance(fault, StoreDown):  # the connection reports that
            logger.error("append to %r refused by the store: %s", self._reader, fault)

    # --- reserving offsets ---

    def reserve(self, end: int) -> None:
        reserving = self._reservation.extend(end)
        if reserving is not self._reserving:
            self._reserving = reserving
            reserving.add_done_callback(self._reserved)

    def _reserved(self, reserving: asyncio.Task[bool]) -> None:
        if not reserving.cancelled():
            self.writer.reserved(reserving.exception() or reserving.result())

    async def release(self) -> None:
        """The worker stops: reserve nothing, so that a store that restarts is seen to be intact."""
        writer = self.writer
        if writer.is_loaded and not writer.is_busy and self._reservation.ceiling:
            self._reservation.loaded(0, 0)
            await self._host.integrity.release(self._reader.key)

    # --- reading and loading ---

    def read(self, offset: int, count: int) -> None:
        self._streams.read_on(self._reader.key, offset, count, self.writer.entries_read)

    def find(self, entry: InFlightEntry) -> None:
        self._host.spawn(self._find(entry))

    async def _find(self, entry: InFlightEntry) -> None:
        while self.writer.is_resolving(entry):
            await self._streams.wait_up()
            try:
                entries = await self._streams.first_entries(self._reader.key, entry.base, 1)
            except StoreFault as fault:
                await self._still_unknown(fault)
            else:
                self.writer.found(entry, entries[0] if entries else None)
                return

    def recover(self, entry: InFlightEntry) -> None:
        self._host.spawn(self._recover(entry))

    async def _recover(self, entry: InFlightEntry) -> None:
        while self.writer.is_recovering(entry):
            await self._streams.wait_up()
            try:
                store_id = await self._load_state()
                entries = await self._streams.first_entries(self._reader.key, entry.base, 1)
            except StoreFault as fault:
                await self._still_unknown(fault)
            else:
                if store_id == self._host.integrity.store_id:
                    self.writer.recovered(entry, entries[0] if entries else None)
                    return

    async def _still_unknown(self, fault: StoreFault) -> None:
        logger.warning("append to %r: outcome still unknown: %s", self._reader, fault)
        await asyncio.sleep(RETRY_S)

    def load(self) -> None:
        self._host.spawn(self._load())

    async def _load(self) -> None:
        try:
            while await self._load_state() != self._host.integrity.store_id:
                pass
        except Exception as fault:
            if not isinstance(fault, StoreFault):
                logger.exception("log %r cannot be read", self._reader)
            self.writer.load_failed(fault)
        else:
            self.writer.loaded()

    async def _load_state(self) -> bytes:
        """Read the log from its snapshot on and check that it is intact; returns the store id for
        which that holds.

        Nothing else may change the state meanwhile.
        """
        integrity, writer, replication = self._host.integrity, self.writer, self._host.replication
        store_id = integrity.store_id
        loading = Loading(self._streams, integrity, self._reader, writer.unchecked_known_end)
        state, reserved = await loading.run()
        if replication.replicas and await _await_replicated(replication) == NEVER:
            return store_id
        if integrity.store_id == store_id and writer.phase is not Phase.GONE:
            writer.state_loaded(state)
            self._snapshot_size = state.size
            self._reservation.loaded(reserved, state.end)
        return store_id

    def ready(self) -> None:
        reader = self._reader
        if reader.epochs.current and reader.state.transactions.open:
            self._host.transactions_left_open(reader.topic, reader.partition)

    # --- snapshots ---

    async def save_snapshot(self) -> None:
        """Keep the state beside the log, so that what it covers is not read at the next load."""
        state = self._reader.state
        state.forget_producers(time.time_ns() // 1_000_000, self._host.producers_kept_ms())
        self.writer.entries_unsaved = 0
        self._snapshot_size = state.size
        end, snapshot, store_id = state.end, state.snapshot(), self._host.integrity.store_id
        key = self._reader.key
        try:
            if aborted := state.transactions.unsaved():
                await self._streams.save_aborted(key, aborted)  # first: a snapshot leaves them out
                state.transactions.saved(aborted)
            await self._streams.save_snapshot(key, end, snapshot, store_id)
        except StoreFault as fault:
            logger.warning("snapshot of %r not saved: %s", self._reader, fault)


async def _await_replicated(replication: Replication) -> int:
    """How many replicas have everything. One that hangs must not stop this forever."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    replication.when_replicated(partial(resolve, future))
    reached: int = await within(REPLICATED_WITHIN_S, future)
    return reached
