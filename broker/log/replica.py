"""A log as this worker knows it: the fold of its entries, and how it keeps up with the log.

Loading, catching up with what others appended, snapshots. Appending, which needs all of it, is in
partition.py, where the phases are explained.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Coroutine
from enum import Enum, auto
from typing import Any, Protocol

from broker.errors import ErrorCode, KafkaError, StoreFault, StoreFull
from broker.log.callbacks import Completion, settled
from broker.log.reader import LogReader
from broker.log.state import LogState
from broker.log.tail import CachedEntry, Tail
from broker.store.streams import Entry, Streams
from broker.wire.batch import CorruptBatch, headers

log = logging.getLogger("moldau.log")

MAX_ENTRIES_PER_READ = 64  # read at a time, to catch up
MAX_BYTES_PER_READ = 4 << 20  # about: of the store's memory and ours, for each log that reads
SNAPSHOT_BYTES = 64 << 20
ENTRY_OVERHEAD = 256  # what a cached entry costs beside its bytes


class Phase(Enum):
    UNLOADED = auto()
    LOADING = auto()
    IDLE = auto()
    GATHERING = auto()
    APPENDING = auto()
    RESOLVING = auto()
    CATCHING_UP = auto()
    GONE = auto()


class LogHost(Protocol):
    """What a log needs of the worker it lives in."""

    streams: Streams
    snapshot_entries: int

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...
    def producers_kept_ms(self) -> int: ...
    def store_full(self, fault: StoreFull) -> None: ...


class LogReplica(LogReader):
    """See the module. What waits to be appended is the subclass's."""

    def __init__(self, host: LogHost, topic: str, partition: int, key: bytes, tail: Tail) -> None:
        super().__init__(host.streams, key, tail)
        self.host = host
        self.topic = topic
        self.partition = partition
        self.phase = Phase.UNLOADED
        self._when_loaded: list[Completion] = []
        self._when_looked: list[Completion] = []  # told when the next look is done
        self._looking_for: list[Completion] = []  # told when this one is
        self._look_again = False
        self._asked_for = 0
        self._since_snapshot = 0
        self._snapshot_size = 0

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"

    # --- what the subclass does about appends ---

    @abstractmethod
    def _go_on(self) -> None:
        """Nothing is out: look again if asked to meanwhile, append what waits, or rest."""

    @abstractmethod
    def _caught_up_to_end(self) -> None:
        """Looked, and nothing more is there."""

    @abstractmethod
    def _expects(self, offset: int) -> bool:
        """Is an append of ours out whose answer will tell all there is to know up to `offset`?"""

    @abstractmethod
    def _fail_queue(self, fault: BaseException) -> None:
        """Refuse everything that waits to be appended."""

    # --- knowing what others appended ---

    def look(self) -> None:
        """Somebody may have appended: read on from our end."""
        if self.phase is Phase.IDLE:
            self._catch_up()
        elif self.phase is not Phase.UNLOADED:
            self._look_again = True

    def when_current(self, done: Completion) -> None:
        """Call `done` once the fold has everything that is in the log now."""
        if self.phase is Phase.UNLOADED:
            self._when_loaded.append(done)
            self._load()
        elif self.phase is Phase.GONE:
            done(topic_gone())
        else:
            self._when_looked.append(done)
            self.look()

    async def current(self) -> None:
        """`when_current`, for those who can wait; raises what went wrong."""
        await settled(self.when_current)

    def when_loaded(self, done: Completion) -> None:
        """Call `done` once the log is known at all; at once when it is."""
        if self.phase is Phase.UNLOADED:
            self._when_loaded.append(done)
            self._load()
        elif self.phase is Phase.LOADING:
            self._when_loaded.append(done)
        else:
            done(topic_gone() if self.phase is Phase.GONE else None)

    @property
    def is_gone(self) -> bool:
        return self.phase is Phase.GONE

    @property
    def is_loaded(self) -> bool:
        return self.phase not in (Phase.UNLOADED, Phase.LOADING, Phase.GONE)

    def received(self, entries: list[Entry]) -> None:
        """Entries the watcher brought of a log we tail."""
        newest = entries[-1].base
        if newest < self.state.end:
            return  # our own, mostly
        if self.phase is not Phase.IDLE:
            if not self._expects(newest):
                self._look_again = True
        elif self._fold(entries):
            self._go_on()
        else:
            self._catch_up()

    def _fold(self, entries: list[Entry]) -> bool:
        """Apply entries at our end; False when something is missing or is not a batch."""
        state = self.state
        moved = False
        for entry in entries:
            if entry.base < state.end:
                continue
            if entry.base > state.end:
                return False
            try:
                state.apply(headers(entry.blob), len(entry.blob))
            except CorruptBatch as fault:
                log.error("%r: entry %d is not ours: %s", self, entry.base, fault)  # noqa: TRY400
                return False
            cost = len(entry.blob) + ENTRY_OVERHEAD
            self.tail.add(CachedEntry(entry.base, state.end, cost, (entry.blob,)))
            self._since_snapshot += 1
            moved = True
        if moved and self.waiters:
            self.wake()
        return True

    def _catch_up(self) -> None:
        self.phase = Phase.CATCHING_UP
        self._look_again = False
        self._looking_for += self._when_looked
        self._when_looked = []
        self._asked_for = _few(self.state)
        self.host.streams.read_on(self.key, self.state.end, self._asked_for, self._caught_up)

    def _caught_up(self, entries: list[Entry] | StoreFault) -> None:
        if self.phase is not Phase.CATCHING_UP:
            return
        if isinstance(entries, StoreFault):
            # Nothing of ours is out: what waits can fail safely, and be sent again by its client.
            self._fail_queue(entries)
            self._look_again = False
            self._tell_everybody(entries)
        elif not self._fold(entries):
            # We were so far behind that retention has passed us: the snapshot knows more.
            self._reload()
            return
        elif len(entries) >= self._asked_for:
            self._catch_up()
            return
        else:
            looked, self._looking_for = self._looking_for, []
            for done in looked:
                done(None)
        if self.phase is not Phase.CATCHING_UP:
            return  # deleted meanwhile
        self._caught_up_to_end()

    def _tell_everybody(self, fault: BaseException | None) -> None:
        waiting = self._when_loaded + self._looking_for + self._when_looked
        self._when_loaded, self._looking_for, self._when_looked = [], [], []
        for done in waiting:
            done(fault)

    # --- loading, snapshots, the end ---

    def _load(self) -> None:
        self.phase = Phase.LOADING
        self.host.spawn(self._load_now())

    def _reload(self) -> None:
        self.tail.clear()
        self._load()

    async def _load_now(self) -> None:
        streams = self.host.streams
        try:
            await self.load_start()
            saved = await streams.saved_state(self.key)
            state = LogState.restore(saved.snapshot)
            while entries := await streams.first_entries(self.key, state.end, _few(state)):
                for entry in entries:
                    state.apply(headers(entry.blob), len(entry.blob))
        except Exception as fault:
            if not isinstance(fault, StoreFault):
                log.exception("log %r cannot be read", self)
            if self.phase is Phase.LOADING:
                self.phase = Phase.UNLOADED
                self._look_again = False
                self._fail_queue(fault)
                self._tell_everybody(fault)
            return
        if self.phase is not Phase.LOADING:
            return
        self.state = state
        self._snapshot_size = state.size
        loaded, self._when_loaded = self._when_loaded + self._looking_for, []
        self._looking_for = []
        for done in loaded:
            done(None)
        self._go_on()
        self.wake()

    @property
    def snapshot_due(self) -> bool:
        return (
            self._since_snapshot >= self.host.snapshot_entries
            or self.state.size - self._snapshot_size >= SNAPSHOT_BYTES
        )

    @property
    def has_news(self) -> bool:
        """Is there anything a snapshot would add?"""
        return self._since_snapshot > 0

    async def save_snapshot(self) -> None:
        """Keep the fold beside the log, so that nobody has to read what it covers."""
        state = self.state
        state.forget_producers(time.time_ns() // 1_000_000, self.host.producers_kept_ms())
        self._since_snapshot = 0
        self._snapshot_size = state.size
        try:
            await self.host.streams.save_snapshot(self.key, state.end, state.snapshot())
        except StoreFault as fault:
            log.warning("snapshot of %r not saved: %s", self, fault)


def _few(state: LogState) -> int:
    """How many entries to read at a time: large ones by the piece."""
    average = state.size // state.entries if state.entries else MAX_BYTES_PER_READ // 8
    return max(1, min(MAX_ENTRIES_PER_READ, MAX_BYTES_PER_READ // max(average, 1)))


def topic_gone() -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
