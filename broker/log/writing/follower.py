"""Keeping the state of a log current: loading it, and reading what other workers have appended.

The half of the writer's machine that does not append (writer.py): a follower knows nothing of
batches that wait. Both halves share one phase.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from functools import partial
from typing import Protocol

from moldau.broker.errors import StoreFault
from moldau.broker.log.callbacks import Completion
from moldau.broker.log.log import Waiters, topic_gone
from moldau.broker.log.state.loading import entries_per_read
from moldau.broker.log.state.log_state import LogState
from moldau.broker.log.state.view import CachedEntry, LogView
from moldau.broker.log.writing.append_queue import InFlightEntry, Replicas
from moldau.broker.log.writing.phases import NOT_LOADED, Phase
from moldau.broker.store.log_integrity import KnownEnd
from moldau.broker.store.replication import NEVER
from moldau.broker.store.streams import Entry
from moldau.broker.wire.batch import CorruptBatch

logger = logging.getLogger("moldau.log")

ENTRY_OVERHEAD = 256  # what a cached entry costs beside its bytes


class Reserved(Protocol):
    """Offsets that this worker may use: see store_loss/log_integrity.py."""

    ceiling: int
    extend_at: int


class Effects(Protocol):
    """What the machine asks of its shell, and the event that answers it."""

    def end_turn(self) -> object:
        """Call `turn_ended` at the end of this turn of the event loop."""

    def send(self, entry: InFlightEntry) -> None:
        """Append an entry at its base offset: `replied`."""

    def read(self, offset: int, count: int) -> None:
        """Read entries: `entries_read`."""

    def load(self) -> None:
        """Load the log: `state_loaded`, then `loaded`; or `load_failed`."""

    def reserve(self, end: int) -> None:
        """Reserve offsets beyond `end`: `reserved`."""

    def find(self, entry: InFlightEntry) -> None:
        """Read what stands at its place, as soon as the store answers: `found`."""

    def recover(self, entry: InFlightEntry) -> None:
        """Load the log, then read what stands at its place: `state_loaded`, `recovered`."""

    def appended(self, entry: InFlightEntry) -> None:
        """An entry of ours is in the log and in its state."""

    def conflict(self) -> None:
        """Another worker has appended first."""

    def refused(self, entry: InFlightEntry, fault: BaseException) -> None:
        """The store has refused an entry for a reason of its own."""

    def wake_leader(self) -> None:
        """Notify the leader of an append; the notice that went with it may be lost."""

    def stream_missing(self) -> None:
        """The log has no stream, so its topic was deleted: `gone`."""

    def ready(self) -> None:
        """The log has been loaded."""


class LogFollower(ABC):
    """What this worker knows of one log, and the phase it is in."""

    def __init__(
        self, effects: Effects, view: LogView, waiters: Waiters, replication: Replicas
    ) -> None:
        self.phase = Phase.UNLOADED
        self.entries_unsaved = 0  # since the last snapshot
        self._effects = effects
        self._view = view
        self._waiters = waiters
        self._replication = replication
        self._catch_up_again = False  # asked to while something else was going on
        self._must_find = False
        self._asked_for = 0
        self._when_loaded: list[Completion] = []
        self._when_next_caught_up: list[Completion] = []  # after the next read of the log's end
        self._when_caught_up: list[Completion] = []  # after the one that is under way
        self._known_end = KnownEnd()  # the most this worker has known, while that is not checked

    def _move(self, phase: Phase) -> None:
        if phase not in self.phase.successors:
            raise AssertionError(f"{self._view!r}: {self.phase.name} -> {phase.name}")
        self.phase = phase

    @property
    def is_loaded(self) -> bool:
        return self.phase not in NOT_LOADED

    @property
    def is_gone(self) -> bool:
        return self.phase is Phase.GONE

    # --- what the other half does ---

    @abstractmethod
    def _go_on(self) -> None:
        """Nothing is in flight: catch up if asked to meanwhile, append what is queued, or rest."""

    @abstractmethod
    def _caught_up(self) -> None:
        """The end of the log was reached: append what is queued, or go on."""

    @abstractmethod
    def _expects(self, offset: int) -> bool:
        """Is an append in flight whose reply will cover everything up to `offset`?"""

    @abstractmethod
    def _fail_queued(self, fault: BaseException) -> None:
        """Refuse every batch that waits to be appended."""

    # --- learning what others appended ---

    def look(self) -> None:
        """Others may have appended: read on from our end."""
        if self.phase is Phase.IDLE:
            self._catch_up()
        elif self.phase is not Phase.UNLOADED:
            self._catch_up_again = True

    def when_current(self, done: Completion) -> None:
        """Call `done` once the state has everything that is in the log now."""
        if self.phase is Phase.UNLOADED:
            self._when_loaded.append(done)
            self._load()
        elif self.phase is Phase.GONE:
            done(topic_gone())
        else:
            self._when_next_caught_up.append(done)
            self.look()

    def when_loaded(self, done: Completion) -> None:
        """Call `done` once the log is known at all; at once when it is."""
        if self.phase is Phase.UNLOADED:
            self._when_loaded.append(done)
            self._load()
        elif self.phase in (Phase.LOADING, Phase.RECOVERING):
            self._when_loaded.append(done)
        else:
            done(topic_gone() if self.phase is Phase.GONE else None)

    def received(self, entries: list[Entry]) -> None:
        """Entries from the watcher, of a log that is tailed."""
        newest = entries[-1].base
        if newest < self._view.state.end:
            return  # our own, mostly
        if self.phase is not Phase.IDLE:
            if not self._expects(newest):
                self._catch_up_again = True
        elif not self._fold(entries):
            self._catch_up()

    def _fold(self, entries: list[Entry]) -> bool:
        """Apply entries at our end; False when something is missing or is not a batch."""
        view = self._view
        state, replicas = view.state, self._replication.replicas
        moved = False
        if replicas:
            view.hold_readers()
        else:
            view.release_readers()
        for entry in entries:
            if entry.base < state.end:
                continue
            if entry.base > state.end:
                return False
            try:
                state.apply(entry.blob)
            except CorruptBatch as fault:
                logger.error("%r: entry %d is not ours: %s", view, entry.base, fault)  # noqa: TRY400
                return False
            cost = len(entry.blob) + ENTRY_OVERHEAD
            view.tail.add(CachedEntry(entry.base, state.end, cost, (entry.blob,)))
            self.entries_unsaved += 1
            moved = True
        if moved and replicas:
            self._replication.when_replicated(partial(self._replicated, state.end, state.size))
        elif moved:
            self._waiters.wake()
        return True

    def _replicated(self, end: int, size: int, reached: int) -> None:
        """Every replica of the store has the log up to `end`: readers may see it."""
        if reached != NEVER and self.is_loaded:
            self._view.show_readers(end, size)
            self._waiters.wake()

    def _catch_up(self, *, must_find: bool = False) -> None:
        """Read on from our end until nothing more is there.

        `must_find`: the store refused an append at our end. If nothing is there, the log has begun
        a new epoch beyond it.
        """
        self._must_find = must_find
        self._move(Phase.CATCHING_UP)
        self._catch_up_again = False
        self._when_caught_up += self._when_next_caught_up
        self._when_next_caught_up = []
        self._asked_for = entries_per_read(self._view.state)
        self._effects.read(self._view.state.end, self._asked_for)

    def entries_read(self, entries: list[Entry] | StoreFault) -> None:
        """The entries from our end on; fewer than asked for: these are all."""
        if self.phase is not Phase.CATCHING_UP:
            return
        if isinstance(entries, StoreFault):
            # Nothing of ours is in flight: what is queued can fail safely, its clients retry.
            self._fail_queued(entries)
            self._catch_up_again = False
            self._complete_all(entries)
        elif not self._fold(entries) or (self._must_find and not entries):
            # We were so far behind that retention has passed us: the snapshot covers more.
            self._view.tail.clear()
            self._load()
            return
        elif len(entries) >= self._asked_for:
            self._catch_up()
            return
        else:
            done, self._when_caught_up = self._when_caught_up, []
            for completion in done:
                completion(None)
        if self.phase is not Phase.CATCHING_UP:
            return  # deleted meanwhile
        self._caught_up()

    # --- loading ---

    def _load(self) -> None:
        self._move(Phase.LOADING)
        self._effects.load()

    @property
    def known_end(self) -> KnownEnd:
        """The most this worker has known of the log."""
        view, known_end = self._view, self._known_end
        return KnownEnd(
            max(known_end.end, view.state.end), max(known_end.epoch, view.epochs.current)
        )

    @property
    def unchecked_known_end(self) -> KnownEnd:
        """The same while the log is not loaded in this id of the store."""
        return self._known_end

    def state_loaded(self, state: LogState) -> None:
        """The log was read and found intact; what else waits for `loaded` or `recovered`."""
        self._view.state = state
        self._view.release_readers()
        self._known_end = KnownEnd()
        self.entries_unsaved = 0

    def loaded(self) -> None:
        """The load is over, and `state_loaded` was its last word."""
        if self.phase is Phase.LOADING:
            self._loaded()

    def _loaded(self) -> None:
        loaded, self._when_loaded = self._when_loaded + self._when_caught_up, []
        self._when_caught_up = []
        for completion in loaded:
            completion(None)
        self._go_on()
        self._waiters.wake()
        self._effects.ready()

    def load_failed(self, fault: BaseException) -> None:
        if self.phase is Phase.LOADING:
            self._move(Phase.UNLOADED)
            self._catch_up_again = False
            self._fail_queued(fault)
            self._complete_all(fault)

    def _complete_all(self, fault: BaseException) -> None:
        waiting = self._when_loaded + self._when_caught_up + self._when_next_caught_up
        self._when_loaded, self._when_caught_up, self._when_next_caught_up = [], [], []
        for completion in waiting:
            completion(fault)
