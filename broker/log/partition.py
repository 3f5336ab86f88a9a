"""A partition's log: compare-and-append on a Redis stream, and reading.

Appending is optimistic: `XADD <end>-1` succeeds only if nobody appended since, because anybody's
entry would sit exactly at our end. Refused, we read on from our end, check again and retry.

**One append in flight per partition and worker.** Two would break the proof: the first refused,
the second accepted. What arrives meanwhile is gathered and becomes the next entry.

A log is in one of these phases; everything that touches the fold waits for IDLE:

    UNLOADED   nothing known           -> LOADING when first used
    LOADING    reading snapshot, tail  -> IDLE, or UNLOADED when the store failed
    IDLE                               -> GATHERING, CATCHING_UP
    GATHERING  until this turn's end   -> APPENDING, CATCHING_UP
    APPENDING  an XADD is out          -> IDLE; CATCHING_UP when refused; RESOLVING when lost
    RESOLVING  was it appended?        -> IDLE, CATCHING_UP, or APPENDING: sent again
    CATCHING_UP reading what others appended -> IDLE; LOADING when that cannot be made out
    GONE       the topic was deleted

The fold may be behind the log at any time. An append is safe all the same, because the store
refuses it then; a duplicate once seen stays one. Only a refusal that what others appended since
might overturn (OUT_OF_ORDER_SEQUENCE_NUMBER) is not given before we have looked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from broker.errors import (
    ErrorCode,
    KafkaError,
    StoreDown,
    StoreFault,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from broker.log.flight import Append, Flight
from broker.log.replica import ENTRY_OVERHEAD, LogHost, LogReplica, Phase, topic_gone
from broker.log.tail import CachedEntry, Tail
from broker.store.resp import append_prefix
from broker.wire.batch import NO_PRODUCER_ID

log = logging.getLogger("moldau.log")

ENTRY_LIMIT = 1 << 20  # what is gathered into one entry
WORTH_SENDING = 1 << 18  # bytes: the store can begin with them while we go on receiving
INDEX_EVERY = 1 << 20
RESOLVE_AGAIN_S = 0.25  # a store that answers, but not this: it is loading its file, say


class PartitionLog(LogReplica):
    """See the module. Reading is in reader.py, the fold and its upkeep in replica.py."""

    def __init__(
        self, host: LogHost, topic: str, partition: int, key: bytes, tail: Tail, wake: bytes | None
    ) -> None:
        super().__init__(host, topic, partition, key, tail)
        self._loop = asyncio.get_running_loop()
        self._prefix = append_prefix(key)
        self._wake_leader = wake  # the command that tells the leader; None when we are it
        self._queue: deque[Append] = deque()
        self._gathered_bytes = 0
        self._flight: Flight | None = None
        self._looked_for: Append | None = None  # seemed out of order: we looked before we said so

    def append(self, append: Append) -> None:
        queue, phase = self._queue, self.phase
        queue.append(append)
        if phase is Phase.APPENDING:
            return
        if phase is Phase.GATHERING or phase is Phase.IDLE:
            self._gather(phase, len(append.batch))
        elif phase is Phase.RESOLVING:
            # This can last: let go of what clients stopped waiting for, and are sending again.
            while queue[0].given_up and len(queue) > 1:
                queue.popleft()
        elif phase is Phase.UNLOADED:
            self._load()
        elif phase is Phase.GONE:
            self._fail_queue(topic_gone())

    def _gather(self, phase: Phase, size: int) -> None:
        if phase is Phase.IDLE:
            self.phase = Phase.GATHERING
            self._gathered_bytes = 0
            self._loop.call_soon(self._gathered)
        self._gathered_bytes += size
        if self._gathered_bytes >= WORTH_SENDING:
            self._go_on()

    def _gathered(self) -> None:
        """The turn of the event loop is over: what it brought goes out as one entry."""
        if self.phase is Phase.GATHERING:
            self._go_on()

    def _send_next(self) -> None:
        """Gather what is waiting into an entry and send it."""
        # First of all, as answering a refused batch can bring the next one in.
        self.phase = Phase.APPENDING
        queue, state = self._queue, self.state
        flight = Flight(state.end, state.end)
        while queue and (not flight.parts or flight.size + len(queue[0].batch) <= ENTRY_LIMIT):
            append = queue.popleft()
            if append.given_up:
                continue
            header = append.header
            producer = None
            if header.producer_id != NO_PRODUCER_ID:
                try:
                    duplicate = state.check(header, flight.producers)
                except KafkaError as refusal:
                    if self._may_be_mistaken(append, refusal):
                        queue.appendleft(append)
                        self._look_again = True
                        break
                    append.done(refusal, -1, -1)
                    continue
                if duplicate is not None:
                    if duplicate.base_offset >= flight.base:
                        # Of a batch in this very entry: its fate is the entry's.
                        queue.appendleft(append)
                        break
                    # With replicas to wait for too: the first answer may have been "too few".
                    self._in_the_log(append, duplicate.base_offset, duplicate.timestamp)
                    continue
                producer = state.advance(header, flight.end, flight.producers)
            flight.add(append, producer)
        if not flight.parts:
            self._go_on()
            return
        flight.seal()
        self._flight = flight
        self._send(flight)

    def _may_be_mistaken(self, append: Append, refusal: KafkaError) -> bool:
        """What it should follow may have gone through another worker: look once before we say."""
        if refusal.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or append is self._looked_for:
            return False
        self._looked_for = append
        return True

    def _send(self, flight: Flight) -> None:
        self.host.streams.append(
            self._prefix,
            flight.base,
            flight.parts,
            flight.size,
            flight.nonce,
            self._wake_leader,
            self._answered,
        )

    def _in_the_log(self, append: Append, base_offset: int, timestamp: int) -> None:
        """Answer, once as many replicas of the store have it as the topic wants."""
        if not append.replicas:
            append.done(None, base_offset, timestamp)
            return

        def reached(got: int) -> None:
            error = None if got >= append.replicas else _too_few(append.replicas, got)
            append.done(error, base_offset, timestamp)

        self.host.streams.wait_replicas(append.replicas, append.timeout_ms, reached)

    def _answered(self, reply: Any) -> None:
        flight = self._flight
        if flight is None:  # the topic was deleted while this was on its way
            return
        if type(reply) is bytes:
            self._succeeded(flight)
        elif reply is None:
            self.gone()
        elif isinstance(reply, StoreRefused):
            self._refused(flight, reply)
        else:
            assert isinstance(reply, StoreFault)
            self._find_out(flight)

    def _succeeded(self, flight: Flight) -> None:
        self._flight = None
        state = self.state
        indexed = state.size // INDEX_EVERY
        state.appended(
            flight.end,
            flight.size,
            flight.max_timestamp,
            flight.max_timestamp_base,
            flight.producers,
        )
        cost = flight.size + ENTRY_OVERHEAD
        self.tail.add(CachedEntry(flight.base, flight.end, cost, tuple(flight.parts)))
        if state.size // INDEX_EVERY != indexed:
            self.host.streams.index(self.key, state.max_timestamp, state.end, state.size)
        self._since_snapshot += 1
        for append in flight.appends:
            if append.replicas:
                self._in_the_log(append, append.base_offset, append.header.max_timestamp)
            else:
                append.done(None, append.base_offset, append.header.max_timestamp)
        self._go_on()
        if self.waiters:
            self.wake()
        if self.snapshot_due:
            self.host.spawn(self.save_snapshot())

    def _refused(self, flight: Flight, fault: StoreRefused) -> None:
        if "equal or smaller" in str(fault):
            if flight.sent_again:
                self._find_out(flight)  # what is in the way may be our own first try, come late
            else:
                self._taken(flight)
            return
        if flight.sent_again and isinstance(fault, StoreDown):
            self._find_out(flight)
            return
        self._flight = None
        if isinstance(fault, StoreFull):
            self.host.store_full(fault)
        elif not isinstance(fault, StoreDown):  # that one is the connection's to report
            log.error("append to %r refused by the store: %s", self, fault)
        for append in flight.appends:
            append.done(fault, -1, -1)
        self._go_on()

    def _taken(self, flight: Flight) -> None:
        """Somebody appended first. Back into the queue, in order, behind what they wrote."""
        self._flight = None
        self._queue.extendleft(reversed(flight.appends))
        self._catch_up()

    def _find_out(self, flight: Flight) -> None:
        self.phase = Phase.RESOLVING
        self.host.spawn(self._resolve(flight))

    async def _resolve(self, flight: Flight) -> None:
        """The connection was lost with an append out: find out whether it is in the log.

        If it is not there it is sent again, the same bytes with the same id: should the first
        try still arrive, Redis takes only one of the two.
        """
        streams = self.host.streams
        while self._flight is flight:
            await streams.wait_up()
            try:
                entries = await streams.first_entries(self.key, flight.base, 1)
            except StoreFault as fault:
                log.warning("append to %r: outcome still unknown: %s", self, fault)
                await asyncio.sleep(RESOLVE_AGAIN_S)
                continue
            if self._flight is not flight:
                return
            if not entries:
                flight.sent_again = True
                self.phase = Phase.APPENDING
                self._send(flight)
            elif flight.matches(entries[0]):
                if self._wake_leader is not None:
                    streams.wake(self._wake_leader)  # the first wake-up may be lost
                self._succeeded(flight)
            else:
                self._taken(flight)
            return

    # --- what following the log needs of it ---

    def _go_on(self) -> None:
        """Nothing is out: look again if asked to meanwhile, append what waits, or rest."""
        if self._look_again:
            self._catch_up()
        elif self._queue:
            self._send_next()
        else:
            self.phase = Phase.IDLE
            self._looked_for = None

    def _caught_up_to_end(self) -> None:
        if self._queue:
            self._send_next()  # before looking again, or those who look would hold up appends
        else:
            self._go_on()

    def _expects(self, offset: int) -> bool:
        return self._flight is not None and offset <= self._flight.base

    @property
    def is_busy(self) -> bool:
        return self._flight is not None or bool(self._queue)

    def gone(self) -> None:
        """The topic was deleted: nothing more can be appended or read."""
        flight, self._flight = self._flight, None
        self.phase = Phase.GONE
        self.tail.clear()
        for append in flight.appends if flight is not None else ():
            append.done(topic_gone(), -1, -1)
        self._fail_queue(topic_gone())
        self._tell_everybody(topic_gone())
        self.wake()

    def _fail_queue(self, fault: BaseException) -> None:
        waiting, self._queue = self._queue, deque()
        for append in waiting:
            append.done(fault, -1, -1)


def _too_few(wanted: int, reached: int) -> BaseException:
    if reached < 0:
        return StoreUnavailable("the store did not say how many replicas have it")
    return KafkaError(
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        f"{reached} of {wanted} replicas of the store have it",
    )
