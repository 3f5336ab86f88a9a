"""This worker's replica of a log's state: the fold of its entries, and how it keeps up.

Loading (snapshot, then the entries after it), catching up with what other workers appended, saving
snapshots. The entries themselves stay in the store. Appending waits for this and is in
partition.py, where the phases are explained.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from enum import Enum, auto
from functools import partial
from typing import Any, Protocol

from moldau.broker.errors import StoreFault, StoreFull
from moldau.broker.log.callbacks import Completion, await_callback
from moldau.broker.log.history import LogHistory
from moldau.broker.log.log import topic_gone
from moldau.broker.log.reading.reader import LogReader
from moldau.broker.log.reading.tail import CachedEntry
from moldau.broker.log.reading.waiters import Waiters
from moldau.broker.log.state.loading import Loading, entries_per_read
from moldau.broker.log.writing.reservation import Reservation
from moldau.broker.store.log_history import Floor
from moldau.broker.store.pipe import resolve, within
from moldau.broker.store.replication import NEVER, Replication
from moldau.broker.store.streams import Entry, Streams
from moldau.broker.wire.batch import CorruptBatch

logger = logging.getLogger("moldau.log")

REPLICATED_WITHIN_S = 5.0
SNAPSHOT_BYTES = 64 << 20
ENTRY_OVERHEAD = 256  # what a cached entry costs beside its bytes


class Phase(Enum):
    UNLOADED = auto()
    LOADING = auto()
    IDLE = auto()
    GATHERING = auto()
    APPENDING = auto()
    RESOLVING = auto()
    RECOVERING = auto()
    CATCHING_UP = auto()
    GONE = auto()


NOT_LOADED = (Phase.UNLOADED, Phase.LOADING, Phase.RECOVERING, Phase.GONE)


class ReplicaHost(Protocol):
    """What a replica needs of the worker it lives in."""

    streams: Streams
    history: LogHistory
    replication: Replication
    snapshot_entries: int

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...
    def producers_kept_ms(self) -> int: ...
    def store_full(self, fault: StoreFull) -> None: ...
    def transactions_left_open(self, topic: str, partition: int) -> None:
        """A log with open transactions was loaded that once began a new leader epoch."""


class Appender(Protocol):
    """What appends to the log, and takes turns with the replica."""

    def go_on(self) -> None:
        """Nothing is in flight: catch up if asked to meanwhile, append what is queued, or rest."""

    def caught_up(self) -> None:
        """The replica has reached the end of the log."""

    def expects(self, offset: int) -> bool:
        """Is an append in flight whose reply will cover everything up to `offset`?"""

    def fail_queued(self, fault: BaseException) -> None:
        """Refuse everything that waits to be appended."""

    @property
    def reservation(self) -> Reservation: ...


async def await_replicated(replication: Replication) -> int:
    """How many replicas have everything. One that hangs must not stop this for ever."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    replication.when_replicated(partial(resolve, future))
    reached: int = await within(REPLICATED_WITHIN_S, future)
    return reached


class LogReplica:
    """See the module."""

    def __init__(
        self, host: ReplicaHost, reader: LogReader, waiters: Waiters, appender: Appender
    ) -> None:
        self.host = host
        self.reader = reader
        self.phase = Phase.UNLOADED
        self.catch_up_again = False  # asked to catch up while something else was going on
        self._waiters = waiters
        self._appender = appender
        self._when_loaded: list[Completion] = []
        self._when_next_caught_up: list[Completion] = []  # after the next read of the log's end
        self._when_caught_up: list[Completion] = []  # after the one that is under way
        self._asked_for = 0
        self._must_find = False
        self._floor = Floor()  # the most this worker has known, while that is not proved
        self._since_snapshot = 0  # entries
        self._snapshot_size = 0

    def __repr__(self) -> str:
        return repr(self.reader)

    @property
    def is_loaded(self) -> bool:
        return self.phase not in NOT_LOADED

    # --- learning what others appended ---

    def look(self) -> None:
        """Others may have appended: read on from our end."""
        if self.phase is Phase.IDLE:
            self.catch_up()
        elif self.phase is not Phase.UNLOADED:
            self.catch_up_again = True

    def when_current(self, done: Completion) -> None:
        """Call `done` once the fold has everything that is in the log now."""
        if self.phase is Phase.UNLOADED:
            self._when_loaded.append(done)
            self.load()
        elif self.phase is Phase.GONE:
            done(topic_gone())
        else:
            self._when_next_caught_up.append(done)
            self.look()

    async def current(self) -> None:
        """`when_current` as a coroutine."""
        await await_callback(self.when_current)

    def when_loaded(self, done: Completion) -> None:
        """Call `done` once the log is known at all; at once when it is."""
        if self.phase is Phase.UNLOADED:
            self._when_loaded.append(done)
            self.load()
        elif self.phase in (Phase.LOADING, Phase.RECOVERING):
            self._when_loaded.append(done)
        else:
            done(topic_gone() if self.phase is Phase.GONE else None)

    def received(self, entries: list[Entry]) -> None:
        """Entries from the watcher, of a log that is tailed."""
        newest = entries[-1].base
        if newest < self.reader.state.end:
            return  # our own, mostly
        if self.phase is not Phase.IDLE:
            if not self._appender.expects(newest):
                self.catch_up_again = True
        elif self._fold(entries):
            self._appender.go_on()
        else:
            self.catch_up()

    def appended(self, entry: CachedEntry) -> None:
        """An entry of ours is in the log and in the fold: cache it."""
        self.reader.tail.add(entry)
        self._since_snapshot += 1

    def _fold(self, entries: list[Entry]) -> bool:
        """Apply entries at our end; False when something is missing or is not a batch."""
        state = self.reader.state
        moved = False
        replication = self.host.replication
        if replication.replicas:
            self.reader.hold_readers()
        else:
            self.reader.release_readers()
        for entry in entries:
            if entry.base < state.end:
                continue
            if entry.base > state.end:
                return False
            try:
                state.apply(entry.blob)
            except CorruptBatch as fault:
                logger.error("%r: entry %d is not ours: %s", self, entry.base, fault)  # noqa: TRY400
                return False
            cost = len(entry.blob) + ENTRY_OVERHEAD
            self.appended(CachedEntry(entry.base, state.end, cost, (entry.blob,)))
            moved = True
        if moved and replication.replicas:
            replication.when_replicated(partial(self.replicated, state.end, state.size))
        elif moved:
            self._waiters.wake()
        return True

    def replicated(self, end: int, size: int, reached: int) -> None:
        """Every replica of the store has the log up to `end`: readers may see it."""
        if reached != NEVER and self.is_loaded:
            self.reader.show_readers(end, size)
            self._waiters.wake()

    def catch_up(self, *, must_find: bool = False) -> None:
        """Read on from our end until nothing more is there.

        `must_find`: the store refused an append at our end. If nothing is there, the log has begun
        a new epoch beyond it.
        """
        self._must_find = must_find
        self.phase = Phase.CATCHING_UP
        self.catch_up_again = False
        self._when_caught_up += self._when_next_caught_up
        self._when_next_caught_up = []
        reader = self.reader
        self._asked_for = entries_per_read(reader.state)
        self.host.streams.read_on(reader.key, reader.state.end, self._asked_for, self._read)

    def _read(self, entries: list[Entry] | StoreFault) -> None:
        if self.phase is not Phase.CATCHING_UP:
            return
        if isinstance(entries, StoreFault):
            # Nothing of ours is in flight: what is queued can fail safely, its clients retry.
            self._appender.fail_queued(entries)
            self.catch_up_again = False
            self._complete_all(entries)
        elif not self._fold(entries) or (self._must_find and not entries):
            # We were so far behind that retention has passed us: the snapshot covers more.
            self.reader.tail.clear()
            self.load()
            return
        elif len(entries) >= self._asked_for:
            self.catch_up()
            return
        else:
            done, self._when_caught_up = self._when_caught_up, []
            for completion in done:
                completion(None)
        if self.phase is not Phase.CATCHING_UP:
            return  # deleted meanwhile
        self._appender.caught_up()

    def gone(self) -> None:
        """The topic was deleted."""
        self.phase = Phase.GONE
        self.reader.tail.clear()
        self._complete_all(topic_gone())
        self._waiters.wake()

    def history_changed(self, *, is_needed: bool) -> None:
        """The store may have lost entries; nothing is in flight."""
        if self.phase in (Phase.UNLOADED, Phase.LOADING, Phase.GONE):
            return  # a load under way begins again
        self.forget()
        waiting = self._when_loaded or self._when_caught_up or self._when_next_caught_up
        if is_needed or waiting or self._waiters:
            self.load()
        else:
            self.phase = Phase.UNLOADED
            self.catch_up_again = False
        self._waiters.wake()

    def forget(self) -> None:
        """What is known does not count any more: the log has to be loaded again."""
        self.reader.tail.clear()
        if self.phase is not Phase.RECOVERING:
            self._floor = self.floor

    @property
    def floor(self) -> Floor:
        """The most this worker has known of the log."""
        reader, floor = self.reader, self._floor
        return Floor(max(floor.end, reader.state.end), max(floor.epoch, reader.epochs.current))

    def _complete_all(self, fault: BaseException) -> None:
        waiting = self._when_loaded + self._when_caught_up + self._when_next_caught_up
        self._when_loaded, self._when_caught_up, self._when_next_caught_up = [], [], []
        for completion in waiting:
            completion(fault)

    # --- loading ---

    def load(self) -> None:
        self.phase = Phase.LOADING
        self.host.spawn(self._load())

    async def _load(self) -> None:
        try:
            while await self.load_again() != self.host.history.token:
                pass
        except Exception as fault:
            if not isinstance(fault, StoreFault):
                logger.exception("log %r cannot be read", self)
            if self.phase is Phase.LOADING:
                self.phase = Phase.UNLOADED
                self.catch_up_again = False
                self._appender.fail_queued(fault)
                self._complete_all(fault)
            return
        if self.phase is Phase.LOADING:
            self.loaded()

    async def load_again(self) -> bytes:
        """Read the log from its snapshot on, and prove it whole; the token that holds for.

        Nothing else may change the fold meanwhile.
        """
        reader, history = self.reader, self.host.history
        token = history.token
        loading = Loading(self.host.streams, history, reader, self._floor)
        state, reserved = await loading.run()
        replication = self.host.replication
        if replication.replicas and await await_replicated(replication) == NEVER:
            return token
        if history.token == token and self.phase is not Phase.GONE:
            reader.state = state
            reader.release_readers()
            self._floor = Floor()
            self._since_snapshot = 0
            self._snapshot_size = state.size
            self._appender.reservation.loaded(reserved, state.end)
        return token

    def loaded(self) -> None:
        """The fold is there: go on."""
        loaded, self._when_loaded = self._when_loaded + self._when_caught_up, []
        self._when_caught_up = []
        for completion in loaded:
            completion(None)
        self._appender.go_on()
        self._waiters.wake()
        if self.reader.epochs.current and self.reader.state.transactions.open:
            self.host.transactions_left_open(self.reader.topic, self.reader.partition)

    # --- snapshots ---

    def save_snapshot_if_due(self) -> None:
        if (
            self._since_snapshot >= self.host.snapshot_entries
            or self.reader.state.size - self._snapshot_size >= SNAPSHOT_BYTES
        ):
            self.host.spawn(self.save_snapshot())

    @property
    def has_unsaved_entries(self) -> bool:
        """Is there anything a snapshot would add?"""
        return self._since_snapshot > 0

    async def save_snapshot(self) -> None:
        """Keep the fold beside the log, so that what it covers is not read at the next load."""
        state = self.reader.state
        state.forget_producers(time.time_ns() // 1_000_000, self.host.producers_kept_ms())
        self._since_snapshot = 0
        self._snapshot_size = state.size
        end, snapshot, token = state.end, state.snapshot(), self.host.history.token
        streams, key = self.host.streams, self.reader.key
        try:
            if aborted := state.transactions.unsaved():
                await streams.save_aborted(key, aborted)  # first: a snapshot leaves them out
                state.transactions.saved(aborted)
            await streams.save_snapshot(key, end, snapshot, token)
        except StoreFault as fault:
            logger.warning("snapshot of %r not saved: %s", self, fault)
