"""Compare-and-append: how batches get into a partition's stream. A state machine without I/O.

Appending is optimistic: `XADD <end>-1` succeeds only if no other worker has appended since, because
its entry would sit exactly at our end. If the store refuses, the writer reads on from its end,
checks its batches again and retries.

**One append in flight per partition and worker.** Two would break the proof: the first refused,
the second accepted. Batches that arrive meanwhile are queued and become the next entry (group
commit).

The state of the log may be behind the log at any time. An append is safe all the same, because the
store refuses it then; a duplicate that was found stays one. Only a refusal that others' entries
might overturn (OUT_OF_ORDER_SEQUENCE_NUMBER) waits until the writer has caught up.

Events are methods; the machine asks for I/O by calling `Effects`, which its shell implements
(log/partition.py). Plain calls, because each Produce request makes several.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from moldau.broker.errors import StoreDown, StoreFault, StoreFull, StoreRefused
from moldau.broker.log.log import Waiters, topic_gone
from moldau.broker.log.state.view import CachedEntry, LogView
from moldau.broker.log.writing.append import Append
from moldau.broker.log.writing.append_queue import (
    AppendQueue,
    InFlightEntry,
    Replicas,
    acknowledge,
    too_few,
)
from moldau.broker.log.writing.follower import ENTRY_OVERHEAD, Effects, LogFollower, Reserved
from moldau.broker.log.writing.phases import Phase
from moldau.broker.log.writing.verification import PendingVerification, Verifies
from moldau.broker.store.streams import Entry

WORTH_SENDING = 1 << 18  # bytes: the store can begin with them while we go on receiving


class PartitionWriter(LogFollower):
    """The state of one log, its queue of batches and the entry in flight."""

    def __init__(
        self,
        effects: Effects,
        view: LogView,
        waiters: Waiters,
        replication: Replicas,
        reservation: Reserved,
        coordinators: Verifies,
        clock: Callable[[], float],
        refused: dict[str, int] | None = None,
    ) -> None:
        super().__init__(effects, view, waiters, replication)
        self._reservation = reservation
        self._coordinators = coordinators
        self._queue = AppendQueue(self._acknowledge_duplicate, self._verify, clock, refused)
        self._waiting = self._queue.waiting
        self._verification: PendingVerification | None = None  # made for the first transaction
        self._gathered_bytes = 0
        self._in_flight: InFlightEntry | None = None
        self._even_if_full = False  # markers were refused by a full store

    @property
    def is_busy(self) -> bool:
        return self._in_flight is not None or bool(self._waiting)

    # --- appending ---

    def append(self, append: Append) -> None:
        """Append a batch; `append.done` is called with its offset or the fault."""
        if append.replicas > 0 and (refusal := too_few(append, self._replication.replicas)):
            self._queue.fail(append, refusal)
            return
        verification = self._verification
        if verification is not None and verification.keeps(append):
            return
        phase = self.phase
        self._waiting.append(append)
        if phase is Phase.APPENDING:
            return
        if phase is Phase.IDLE or phase is Phase.GATHERING:
            if phase is Phase.IDLE:
                self._move(Phase.GATHERING)
                self._gathered_bytes = 0
                self._effects.end_turn()
            self._gathered_bytes += len(append.batch)
            if self._gathered_bytes >= WORTH_SENDING:
                self._go_on()
        elif phase is Phase.RESOLVING:
            # This can last: drop the batches that clients stopped waiting for, and send again.
            self._queue.drop_given_up()
        elif phase is Phase.UNLOADED:
            self._load()
        elif phase is Phase.GONE:
            self._queue.fail_all(topic_gone())

    def turn_ended(self) -> None:
        """What arrived in this turn of the event loop goes out as one entry."""
        if self.phase is Phase.GATHERING:
            self._go_on()

    def _go_on(self) -> None:
        if self._catch_up_again:
            self._catch_up()
        elif self._waiting:
            self._send_next()
        else:
            self._move(Phase.IDLE)
            self._queue.rechecked = None

    def _caught_up(self) -> None:
        if self._waiting:
            self._send_next()  # before catching up again, or readers would hold up appends
        else:
            self._go_on()

    def _expects(self, offset: int) -> bool:
        return self._in_flight is not None and offset <= self._in_flight.base

    def _fail_queued(self, fault: BaseException) -> None:
        self._queue.fail_all(fault)

    def _send_next(self) -> None:
        """Gather what is waiting into an entry and send it."""
        # First of all, as refusing a batch can bring the next one in.
        self._move(Phase.APPENDING)
        queue, view, even_if_full = self._queue, self._view, self._even_if_full
        entry = queue.gather(view.state, view.epochs.current, only_markers=even_if_full)
        if queue.wants_to_catch_up:
            queue.wants_to_catch_up = False
            self._catch_up_again = True
        self._even_if_full = False
        if not entry.parts:
            self._go_on()
            return
        entry.even_if_full = even_if_full
        entry.seal()
        self._in_flight = entry
        if entry.end <= self._reservation.ceiling:
            self._effects.send(entry)
        else:
            self._move(Phase.RESERVING)
            self._effects.reserve(entry.end)

    def reserved(self, outcome: bool | BaseException) -> None:
        """More offsets are reserved; False: not in this id of the store; or the fault."""
        entry = self._in_flight
        if entry is None or self.phase is not Phase.RESERVING:
            return  # reserved ahead of need
        if entry.end <= self._reservation.ceiling:
            self._move(Phase.APPENDING)
            self._effects.send(entry)
        elif isinstance(outcome, BaseException):
            self._refused(entry, outcome)
        elif outcome:
            self._effects.reserve(entry.end)  # what was under way was for an earlier entry
        else:
            self._put_back(entry)
            self._load()

    def replied(self, reply: Any) -> None:
        """The store has answered an append: with its id, None (no such stream) or the fault."""
        entry = self._in_flight
        if entry is None:  # the topic was deleted while this was on its way
            return
        if self.phase is Phase.RECOVERING:
            return  # the store has changed: `recovered` will show whether it survived
        if type(reply) is bytes:
            self._appended(entry)
        elif reply is None:
            self._effects.stream_missing()
        elif isinstance(reply, StoreRefused):
            self._refused(entry, reply)
        else:
            assert isinstance(reply, StoreFault)
            self._resolve(entry)

    def _appended(self, entry: InFlightEntry) -> None:
        """The entry is in the log: complete its batches."""
        self._in_flight = None
        view = self._view
        state = view.state
        replicas = self._replication.replicas
        if replicas:
            view.hold_readers()
        state.appended(
            entry.end,
            entry.size,
            entry.max_timestamp,
            entry.max_timestamp_base,
            entry.producers,
            entry.steps,
        )
        cost = entry.size + ENTRY_OVERHEAD
        view.tail.add(CachedEntry(entry.base, entry.end, cost, tuple(entry.parts)))
        self.entries_unsaved += 1
        self._effects.appended(entry)
        shown: Callable[[int], None] | None = None
        if replicas:
            shown = partial(self._replicated, state.end, state.size)
        elif view.shown is not None:
            view.release_readers()
        acknowledge(self._replication, entry.appends, self._queue.retries.failed, shown=shown)
        if entry.end > self._reservation.extend_at:
            self._effects.reserve(entry.end)
        self._go_on()
        if self._waiters.waiting:
            self._waiters.wake()

    def _acknowledge_duplicate(self, append: Append, base_offset: int, timestamp: int) -> None:
        failed = self._queue.retries.failed
        acknowledge(self._replication, (append,), failed, at=(base_offset, timestamp))

    def _refused(self, entry: InFlightEntry, fault: BaseException) -> None:
        if "equal or smaller" in str(fault):
            if entry.sent_again:
                self._resolve(entry)  # it may be our own first try, arrived late
            else:
                self._taken(entry)
            return
        if entry.sent_again and isinstance(fault, StoreDown):
            self._resolve(entry)
            return
        self._in_flight = None
        self._effects.refused(entry, fault)
        if isinstance(fault, StoreFull) and not entry.even_if_full:
            self._even_if_full = self._queue.keep_markers(entry)
        for append in entry.appends:
            self._queue.fail(append, fault)
        self._go_on()

    def _taken(self, entry: InFlightEntry) -> None:
        """Another worker appended first. Back into the queue, in order, behind its entry."""
        self._effects.conflict()
        self._put_back(entry)
        self._catch_up(must_find=True)

    def _put_back(self, entry: InFlightEntry) -> None:
        self._in_flight = None
        self._queue.put_back(entry)

    # --- an append whose outcome is unknown ---

    def _resolve(self, entry: InFlightEntry) -> None:
        self._move(Phase.RESOLVING)
        self._effects.find(entry)

    def is_resolving(self, entry: InFlightEntry) -> bool:
        return self._in_flight is entry and self.phase is Phase.RESOLVING

    def found(self, entry: InFlightEntry, stored: Entry | None) -> None:
        """What stands at the place of an entry whose connection was lost.

        If nothing does it is sent again, the same bytes with the same id: should the first try
        still arrive, Redis takes only one of the two.
        """
        if not self.is_resolving(entry):
            return
        if stored is None:
            entry.sent_again = True
            self._move(Phase.APPENDING)
            self._effects.send(entry)
        elif entry.matches(stored):
            self._effects.wake_leader()
            self._appended(entry)
        else:
            self._taken(entry)

    # --- transactions ---

    def _verify(self, appends: list[Append]) -> None:
        """The coordinator has to say which transaction these batches are part of."""
        if self._verification is None:
            view = self._view
            self._verification = PendingVerification(
                self._coordinators, view.topic, view.partition, self
            )
        self._verification.ask(appends)

    def verification_failed(self, append: Append, fault: BaseException) -> None:
        self._queue.fail(append, fault)

    # --- the store has changed, or is gone ---

    def store_changed(self) -> None:
        """The store may have lost entries: load the log again before anything else."""
        phase, entry = self.phase, self._in_flight
        if phase in (Phase.UNLOADED, Phase.LOADING, Phase.GONE):
            return  # a load under way begins again
        self._view.tail.clear()
        if phase is not Phase.RECOVERING:  # else it begins again
            self._known_end = self.known_end
        waiting = self._when_loaded or self._when_caught_up or self._when_next_caught_up
        if entry is not None:
            if phase is not Phase.RECOVERING:
                self._move(Phase.RECOVERING)
                self._effects.recover(entry)
        elif self._waiting or waiting or self._waiters:
            self._load()
        else:
            self._move(Phase.UNLOADED)
            self._catch_up_again = False
        self._waiters.wake()

    def is_recovering(self, entry: InFlightEntry) -> bool:
        return self._in_flight is entry and self.phase is Phase.RECOVERING

    def recovered(self, entry: InFlightEntry, stored: Entry | None) -> None:
        """The log is loaded, and this stands at the place of the entry that was in flight.

        If the entry is lost its batches are queued again. They are never sent with their old id,
        which may be below the new epoch.
        """
        if not self.is_recovering(entry):
            return
        if stored is not None and entry.matches(stored):
            self._in_flight = None
            acknowledge(self._replication, entry.appends, self._queue.retries.failed)
        else:
            self._put_back(entry)
        self._loaded()

    def gone(self) -> None:
        """The topic was deleted."""
        if self.phase is Phase.GONE:
            return
        entry, self._in_flight = self._in_flight, None
        self._move(Phase.GONE)
        for append in entry.appends if entry is not None else ():
            append.done(topic_gone(), -1, -1)
        self._queue.fail_all(topic_gone())
        self._view.tail.clear()
        self._complete_all(topic_gone())
        self._waiters.wake()
