"""Compare-and-append: how batches get into a partition's stream.

Appending is optimistic: `XADD <end>-1` succeeds only if no other worker appended since, because
its entry would sit exactly at our end. Refused, we read on from our end, check again and retry.

**One append in flight per partition and worker.** Two would break the proof: the first refused,
the second accepted. What arrives meanwhile is queued and becomes the next entry (group commit).

A log is in one of these phases; everything that touches the fold waits for IDLE:

    UNLOADED   nothing known             -> LOADING when first used
    LOADING    reading snapshot, tail    -> IDLE, or UNLOADED when the store failed
    IDLE                                 -> GATHERING, CATCHING_UP
    GATHERING  until this turn's end     -> APPENDING, CATCHING_UP
    APPENDING  an XADD is in flight      -> IDLE; CATCHING_UP when refused; RESOLVING when lost
    RESOLVING  was it appended?          -> IDLE, CATCHING_UP, or APPENDING: sent again
    RECOVERING the same, and the store may have lost entries: the log is loaded first -> IDLE
    CATCHING_UP reading others' entries  -> IDLE; LOADING when they do not continue our fold
    GONE       the topic was deleted

The fold may be behind the log at any time. An append is safe all the same, because the store
refuses it then; a duplicate once seen stays one. Only a refusal that others' entries might overturn
(OUT_OF_ORDER_SEQUENCE_NUMBER) is not given before the replica has caught up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from moldau.broker.errors import StoreDown, StoreFault, StoreFull, StoreRefused
from moldau.broker.log.log import topic_gone
from moldau.broker.log.reading.reader import LogReader
from moldau.broker.log.reading.tail import CachedEntry
from moldau.broker.log.reading.waiters import Waiters
from moldau.broker.log.writing.acks import (
    acknowledge,
    acknowledge_all,
    acknowledge_replicated,
    too_few,
)
from moldau.broker.log.writing.append import NO_REPLICAS, Append, InFlightEntry
from moldau.broker.log.writing.append_queue import AppendQueue
from moldau.broker.log.writing.replica import ENTRY_OVERHEAD, LogReplica, Phase, ReplicaHost
from moldau.broker.log.writing.reservation import Reservation
from moldau.broker.log.writing.verification import PendingVerification, Verifies
from moldau.broker.metrics.log_counters import LogCounters
from moldau.broker.metrics.turn_clock import turn
from moldau.broker.store.resp import append_prefix

logger = logging.getLogger("moldau.log")

WORTH_SENDING = 1 << 18  # bytes: the store can begin with them while we go on receiving
INDEX_EVERY = 1 << 20
RESOLVE_AGAIN_S = 0.25  # the store is up and refuses to answer: it is loading its file, say


class AppenderHost(ReplicaHost, Verifies, Protocol):
    """What an appender needs of the worker it lives in."""

    counters: LogCounters


class LogAppender:
    """The queue of one log and its entry in flight; takes turns with the replica."""

    def __init__(
        self,
        host: AppenderHost,
        reader: LogReader,
        waiters: Waiters,
        wake_leader: bytes | None,
        on_gone: Callable[[], None],
    ) -> None:
        self.reservation = Reservation(host.history, reader.key)
        self.replica = LogReplica(host, reader, waiters, self)
        self._host = host
        self._replication = host.replication
        self._reader = reader
        self._waiters = waiters
        self._wake_leader = wake_leader  # the command that notifies the leader; None: it is us
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._prefix = append_prefix(reader.key)
        self._queue = AppendQueue(
            self._acknowledge, self._hand_back, host.counters.topic(reader.topic).refused
        )
        self._waiting = self._queue.waiting
        self._verification: PendingVerification | None = None
        self._gathered_bytes = 0
        self._flight: InFlightEntry | None = None
        self._even_if_full = False  # markers were refused by a full store

    def append(self, append: Append) -> None:
        if append.replicas > 0 and (refusal := too_few(append, self._replication.replicas)):
            self._queue.fail(append, refusal)
            return
        verification = self._verification
        if verification is not None and verification.keeps(append):
            return
        phase = self.replica.phase
        self._waiting.append(append)
        if phase is Phase.APPENDING:
            return
        if phase is Phase.GATHERING or phase is Phase.IDLE:
            self._gather(phase, len(append.batch))
        elif phase is Phase.RESOLVING:
            # This can last: drop what clients stopped waiting for, and are sending again.
            self._queue.drop_given_up()
        elif phase is Phase.UNLOADED:
            self.replica.load()
        elif phase is Phase.GONE:
            self.fail_queued(topic_gone())

    def _gather(self, phase: Phase, size: int) -> None:
        if phase is Phase.IDLE:
            self.replica.phase = Phase.GATHERING
            self._gathered_bytes = 0
            self._loop.call_soon(self._gathered)
        self._gathered_bytes += size
        if self._gathered_bytes >= WORTH_SENDING:
            self.go_on()

    def _gathered(self) -> None:
        """The event loop's turn is over: what arrived in it goes out as one entry."""
        if self.replica.phase is Phase.GATHERING:
            self.go_on()

    def _send_next(self) -> None:
        """Gather what is waiting into an entry and send it."""
        # First of all, as refusing a batch can bring the next one in.
        self.replica.phase = Phase.APPENDING
        queue, even_if_full = self._queue, self._even_if_full
        flight = queue.gather(
            self._reader.state, self._reader.epochs.current, only_markers=even_if_full
        )
        if queue.wants_to_catch_up:
            queue.wants_to_catch_up = False
            self.replica.catch_up_again = True
        self._even_if_full = False
        if not flight.parts:
            self.go_on()
            return
        flight.even_if_full = even_if_full
        flight.seal()
        self._flight = flight
        if flight.end <= self.reservation.ceiling:
            self._send(flight)
        else:
            self._host.spawn(self._reserve_and_send(flight))

    def _send(self, flight: InFlightEntry) -> None:
        streams = self._host.streams
        flight.sent_ns = turn.now_ns
        if flight.even_if_full:
            blob = b"".join(flight.parts)
            streams.append_even_if_full(self._reader.key, flight.base, blob, self._replied)
            if self._wake_leader is not None:
                streams.wake(self._wake_leader)
            return
        streams.append(
            self._prefix,
            flight.base,
            flight.parts,
            flight.size,
            flight.nonce,
            self._wake_leader,
            self._replied,
        )

    async def _reserve_and_send(self, flight: InFlightEntry) -> None:
        try:
            while flight.end > self.reservation.ceiling and self._flight is flight:
                if not await self.reservation.extend(flight.end):
                    break
        except StoreFault as fault:
            if self._is_waiting(flight):
                self._refused(flight, fault)
            return
        if not self._is_waiting(flight):
            return
        if flight.end <= self.reservation.ceiling:
            self._send(flight)
        else:
            self._put_back(flight)
            self.replica.load()

    def _is_waiting(self, flight: InFlightEntry) -> bool:
        return self._flight is flight and self.replica.phase is Phase.APPENDING

    def _replied(self, reply: Any) -> None:
        flight = self._flight
        if flight is None:  # the topic was deleted while this was on its way
            return
        if self.replica.phase is Phase.RECOVERING:
            return  # of a history that has ended: whether it survived is found out there
        if type(reply) is bytes:
            self._succeeded(flight)
        elif reply is None:
            self._on_gone()
        elif isinstance(reply, StoreRefused):
            self._refused(flight, reply)
        else:
            assert isinstance(reply, StoreFault)
            self._find_out(flight)

    def _succeeded(self, flight: InFlightEntry) -> None:
        self._flight = None
        streams, state = self._host.streams, self._reader.state
        counters = self._host.counters
        counters.append[(turn.now_ns - flight.sent_ns).bit_length()] += 1
        counters.batches[len(flight.appends).bit_length()] += 1
        replicas = self._replication.replicas
        if replicas:
            self._reader.hold_readers()
        indexed = state.size // INDEX_EVERY
        state.appended(
            flight.end,
            flight.size,
            flight.max_timestamp,
            flight.max_timestamp_base,
            flight.producers,
            flight.steps,
        )
        cost = flight.size + ENTRY_OVERHEAD
        self.replica.appended(CachedEntry(flight.base, flight.end, cost, tuple(flight.parts)))
        if state.size // INDEX_EVERY != indexed:
            streams.index(self._reader.key, state.max_timestamp, state.end, state.size)
        if replicas:
            end, size = state.end, state.size
            self._replication.when_replicated(partial(self._replicated, flight, end, size))
            acknowledge_all(flight, self._acknowledge, NO_REPLICAS)
        else:
            self._reader.release_readers()
            acknowledge_all(flight, self._acknowledge)
        if flight.end > self.reservation.extend_at:
            self.reservation.extend(flight.end)
        self.go_on()
        self._waiters.wake()
        self.replica.save_snapshot_if_due()

    def _acknowledge(self, append: Append, base_offset: int, timestamp: int) -> None:
        failed = self._queue.retries.failed
        acknowledge(self._replication, append, base_offset, timestamp, failed)

    def _replicated(self, flight: InFlightEntry, end: int, size: int, reached: int) -> None:
        acknowledge_replicated(flight, reached, self._queue.retries.failed)
        self.replica.replicated(end, size, reached)

    def _refused(self, flight: InFlightEntry, fault: StoreFault) -> None:
        if "equal or smaller" in str(fault):
            if flight.sent_again:
                self._find_out(flight)  # it may be our own first try, arrived late
            else:
                self._taken(flight)
            return
        if flight.sent_again and isinstance(fault, StoreDown):
            self._find_out(flight)
            return
        self._flight = None
        if isinstance(fault, StoreFull):
            self._host.store_full(fault)
        elif not isinstance(fault, StoreDown):  # the connection reports that
            logger.error("append to %r refused by the store: %s", self._reader, fault)
        if isinstance(fault, StoreFull) and not flight.even_if_full:
            self._even_if_full = self._queue.keep_markers(flight)
        for append in flight.appends:
            self._queue.fail(append, fault)
        self.go_on()

    def _taken(self, flight: InFlightEntry) -> None:
        """Another worker appended first. Back into the queue, in order, behind its entry."""
        self._host.counters.conflicts += 1
        self._put_back(flight)
        self.replica.catch_up(must_find=True)

    def _put_back(self, flight: InFlightEntry) -> None:
        self._flight = None
        self._queue.put_back(flight)

    def _find_out(self, flight: InFlightEntry) -> None:
        self.replica.phase = Phase.RESOLVING
        self._host.spawn(self._resolve(flight))

    async def _resolve(self, flight: InFlightEntry) -> None:
        """The connection was lost with an append out: find out whether it is in the log.

        If it is not there it is sent again, the same bytes with the same id: should the first
        try still arrive, Redis takes only one of the two.
        """
        streams = self._host.streams
        while self._is_resolving(flight, Phase.RESOLVING):
            await streams.wait_up()
            try:
                entries = await streams.first_entries(self._reader.key, flight.base, 1)
            except StoreFault as fault:
                logger.warning("append to %r: outcome still unknown: %s", self._reader, fault)
                await asyncio.sleep(RESOLVE_AGAIN_S)
                continue
            if not self._is_resolving(flight, Phase.RESOLVING):
                return
            if not entries:
                flight.sent_again = True
                self.replica.phase = Phase.APPENDING
                self._send(flight)
            elif flight.matches(entries[0]):
                if self._wake_leader is not None:
                    streams.wake(self._wake_leader)  # the first wake-up may be lost
                self._succeeded(flight)
            else:
                self._taken(flight)
            return

    def _is_resolving(self, flight: InFlightEntry, phase: Phase) -> bool:
        return self._flight is flight and self.replica.phase is phase

    # --- transactions ---

    def _hand_back(self, appends: list[Append]) -> None:
        if self._verification is None:
            reader = self._reader
            self._verification = PendingVerification(
                self._host, reader.topic, reader.partition, self
            )
        self._verification.ask(appends)

    def verification_failed(self, append: Append, fault: BaseException) -> None:
        self._queue.fail(append, fault)

    # --- a new history of the store ---

    def history_changed(self) -> None:
        """The store may have lost entries: load the log again before anything else."""
        flight = self._flight
        if flight is None:
            self.replica.history_changed(is_needed=bool(self._waiting))
            return
        self.replica.forget()
        if self.replica.phase is not Phase.RECOVERING:  # else it begins again
            self.replica.phase = Phase.RECOVERING
            self._host.spawn(self._recover(flight))
        self._waiters.wake()

    async def _recover(self, flight: InFlightEntry) -> None:
        """Load the log, then see whether the entry that was in flight survived.

        If not, its batches are queued again. They are never sent with their old id, which may be
        below the new epoch.
        """
        streams = self._host.streams
        while self._is_resolving(flight, Phase.RECOVERING):
            await streams.wait_up()
            try:
                token = await self.replica.load_again()
                entries = await streams.first_entries(self._reader.key, flight.base, 1)
            except StoreFault as fault:
                logger.warning("append to %r: outcome still unknown: %s", self._reader, fault)
                await asyncio.sleep(RESOLVE_AGAIN_S)
                continue
            if token != self._host.history.token:
                continue
            if not self._is_resolving(flight, Phase.RECOVERING):
                return
            if entries and flight.matches(entries[0]):
                self._flight = None
                for append in flight.appends:
                    self._acknowledge(append, append.base_offset, append.header.max_timestamp)
            else:
                self._put_back(flight)
            self.replica.loaded()
            return

    # --- taking turns with the replica ---

    def go_on(self) -> None:
        """Nothing is in flight: catch up if asked to meanwhile, append what is queued, or rest."""
        if self.replica.catch_up_again:
            self.replica.catch_up()
        elif self._waiting:
            self._send_next()
        else:
            self.replica.phase = Phase.IDLE
            self._queue.rechecked = None

    def caught_up(self) -> None:
        if self._waiting:
            self._send_next()  # before catching up again, or readers would hold up appends
        else:
            self.go_on()

    def expects(self, offset: int) -> bool:
        return self._flight is not None and offset <= self._flight.base

    def fail_queued(self, fault: BaseException) -> None:
        self._queue.fail_all(fault)

    async def release(self) -> None:
        """The worker stops: reserve nothing, so that a store that restarts is seen to be whole."""
        if self.replica.is_loaded and not self.is_busy and self.reservation.ceiling:
            self.reservation.loaded(0, 0)
            await self._host.history.release(self._reader.key)

    @property
    def is_busy(self) -> bool:
        return self._flight is not None or bool(self._waiting)

    def gone(self) -> None:
        """The topic was deleted."""
        flight, self._flight = self._flight, None
        self.replica.phase = Phase.GONE
        for append in flight.appends if flight is not None else ():
            append.done(topic_gone(), -1, -1)
        self.fail_queued(topic_gone())
        self.replica.gone()
