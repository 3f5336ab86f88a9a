"""Reading a log from the store where it is not known: its snapshot, the entries after it, the check
that nothing is missing, and what became of an entry whose connection was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker.errors import StoreFault
from moldau.broker.log.reading.reader import LogReader
from moldau.broker.log.state.log_state import LogState
from moldau.broker.store.log_integrity import IntactCheck, KnownEnd, Outcome
from moldau.broker.store.pipe import resolve, within
from moldau.broker.store.replication import NEVER, Replication
from moldau.broker.store.streams import INDEX_PAGE, LastId, SavedState, Streams
from moldau.broker.store_loss.log_integrity import LogIntegrity

if TYPE_CHECKING:
    from moldau.broker.log.writing.append_queue import InFlightEntry
    from moldau.broker.log.writing.writer import PartitionWriter

logger = logging.getLogger("moldau.log")

MAX_ENTRIES_PER_READ = 64
MAX_BYTES_PER_READ = 4 << 20  # about: of the store's memory and ours, for each log that reads
CHANGED_AGAIN_S = 0.01
NO_LIMIT = 1 << 63
REPLICATED_WITHIN_S = 5.0
RETRY_S = 0.25  # the store is up and refuses to answer: it is loading its file, say


class LoadingHost(Protocol):
    """What loading needs of its worker."""

    streams: Streams
    integrity: LogIntegrity
    replication: Replication

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...
    def mirror_source(self, topic: str) -> str:
        """The mark of a topic that is a mirror: what it mirrors. Empty: it is none."""


class Loader:
    """Runs those effects of a writer that read the log. `on_read` gets the state, and up to where
    this worker may append."""

    def __init__(
        self,
        host: LoadingHost,
        reader: LogReader,
        writer: PartitionWriter,
        on_read: Callable[[LogState, int], None],
    ) -> None:
        self._host = host
        self._streams = host.streams
        self._reader = reader
        self._writer = writer
        self._on_read = on_read

    def load(self) -> None:
        self._host.spawn(self._load())

    async def _load(self) -> None:
        try:
            while await self._load_state() != self._host.integrity.store_id:
                pass
        except Exception as fault:
            if not isinstance(fault, StoreFault):
                logger.exception("log %r cannot be read", self._reader)
            self._writer.load_failed(fault)
        else:
            self._writer.loaded()

    async def _load_state(self) -> bytes:
        """Read the log from its snapshot on and check that it is intact; returns the store id for
        which that holds.

        Nothing else may change the state meanwhile.
        """
        integrity, writer, replication = self._host.integrity, self._writer, self._host.replication
        store_id = integrity.store_id
        loading = Loading(
            self._streams,
            integrity,
            self._reader,
            writer.unchecked_known_end,
            is_mirrored=bool(self._host.mirror_source(self._reader.topic)),
        )
        state, reserved = await loading.run()
        if replication.replicas and await _await_replicated(replication) == NEVER:
            return store_id
        if integrity.store_id == store_id and not writer.is_gone:
            self._on_read(state, reserved)
        return store_id

    def find(self, entry: InFlightEntry) -> None:
        self._host.spawn(self._find(entry))

    async def _find(self, entry: InFlightEntry) -> None:
        while self._writer.is_resolving(entry):
            await self._streams.wait_up()
            try:
                entries = await self._streams.first_entries(self._reader.key, entry.base, 1)
            except StoreFault as fault:
                await self._still_unknown(fault)
            else:
                self._writer.found(entry, entries[0] if entries else None)
                return

    def recover(self, entry: InFlightEntry) -> None:
        self._host.spawn(self._recover(entry))

    async def _recover(self, entry: InFlightEntry) -> None:
        while self._writer.is_recovering(entry):
            await self._streams.wait_up()
            try:
                store_id = await self._load_state()
                entries = await self._streams.first_entries(self._reader.key, entry.base, 1)
            except StoreFault as fault:
                await self._still_unknown(fault)
            else:
                if store_id == self._host.integrity.store_id:
                    self._writer.recovered(entry, entries[0] if entries else None)
                    return

    async def _still_unknown(self, fault: StoreFault) -> None:
        logger.warning("append to %r: outcome still unknown: %s", self._reader, fault)
        await asyncio.sleep(RETRY_S)


class Loading:
    """`known_end`: what this worker has known of the log under an earlier store id.

    `is_mirrored`: what it has lost is mirrored again, the same records at the same offsets. So it
    goes on where it ends, in the same leader epoch.
    """

    def __init__(
        self,
        streams: Streams,
        integrity: LogIntegrity,
        reader: LogReader,
        known_end: KnownEnd,
        *,
        is_mirrored: bool = False,
    ) -> None:
        self._is_mirrored = is_mirrored
        self._streams = streams
        self._integrity = integrity
        self._reader = reader
        self._known_end = known_end

    async def run(self) -> tuple[LogState, int]:
        """The fold, and up to where this worker may append. Raises StoreFault."""
        reader = self._reader
        begun: dict[tuple[bytes, int], LogState] = {}  # folds by store id and epoch
        while True:
            store_id = self._integrity.store_id
            # In one command: another worker may be about to begin an epoch, and whoever takes the
            # log for intact has to know of it.
            saved = await self._streams.saved_state(reader.key, self._integrity.worker)
            reader.start_loaded(saved.start, may_go_back=True)
            is_intact = saved.store_id == store_id
            if is_intact and (state := begun.get((store_id, reader.epochs.current))) is not None:
                state.begin_epoch(reader.epochs.start)
                return state, saved.reserved
            last_id, state = await (
                self._fold_intact(saved) if is_intact else self._fold_suspect(saved)
            )
            if is_intact and state.end >= last_id.end:
                return state, saved.reserved
            check = await self._integrity.check_intact(
                reader.key, last_id.text, state.end, self._known_end, nothing_lost=self._is_mirrored
            )
            if check.outcome is Outcome.INTACT:
                if self._is_mirrored:
                    await self._forget_lost(state.end)
                return state, 0
            if check.outcome is Outcome.GONE:
                return state, NO_LIMIT  # there is nothing to reserve in: the append will show that
            if check.outcome is Outcome.NEW_EPOCH:
                await self._began_epoch(state, check)
                begun[store_id, check.epoch] = state
            elif check.outcome is Outcome.CHANGED:
                await asyncio.sleep(CHANGED_AGAIN_S)

    async def _fold(self, saved: SavedState, *, use_snapshot: bool = True) -> LogState:
        reader = self._reader
        state = LogState.restore(saved.snapshot if use_snapshot else None)
        if not use_snapshot:
            state.size = saved.start.start_bytes
        while True:
            asked_for = entries_per_read(state)
            entries = await self._streams.first_entries(reader.key, state.end, asked_for)
            for entry in entries:
                state.apply(entry.blob)
            if len(entries) < asked_for:
                break
        state.begin_epoch(reader.epochs.start)
        return state

    # The last id is asked for first: what is appended after that shows in the check.

    async def _fold_intact(self, saved: SavedState) -> tuple[LastId, LogState]:
        return await asyncio.gather(self._streams.last_id(self._reader.key), self._fold(saved))

    async def _fold_suspect(self, saved: SavedState) -> tuple[LastId, LogState]:
        """Read the state of a log that may have lost entries.

        A snapshot that knows more than the log has ever had is of no use.
        """
        key = self._reader.key
        last_id, last, state = await asyncio.gather(
            self._streams.last_id(key), self._streams.last_entry(key), self._fold(saved)
        )
        end = max(last.end if last is not None else 0, self._reader.epochs.start)
        # Unless the last entry was removed: then only the snapshot knows where it ended.
        if state.end > end >= last_id.end:
            logger.warning("%r: its snapshot is beyond its end %d", self._reader, end)
            state = await self._fold(saved, use_snapshot=False)
        return last_id, state

    async def _began_epoch(self, state: LogState, check: IntactCheck) -> None:
        reader, end = self._reader, state.end
        if check.known_end > end:
            logger.critical(
                "%r LOST OFFSETS %d TO %d: the store does not have these records any more. "
                "It goes on at offset %d, in leader epoch %d",
                *(reader, end, check.known_end - 1, check.start, check.epoch),
            )
        else:
            logger.warning(
                "%r may have lost offsets from %d on, when the store was restarted or failed over; "
                "no running worker knew any. It goes on at offset %d, in leader epoch %d",
                *(reader, end, check.start, check.epoch),
            )
        await asyncio.gather(
            self._forget_lost(end),
            self._integrity.epoch_begun(reader.topic, reader.partition, reader.key, check.epoch),
        )

    async def _forget_lost(self, end: int) -> None:
        """Remove what is kept beside the log of offsets from `end` on."""
        key = self._reader.key
        await asyncio.gather(
            drop_positions_from(self._streams, key, end + 1),
            self._streams.drop_aborted(key, end, "+inf"),
        )


def entries_per_read(state: LogState) -> int:
    """How many entries to ask for: few when they are large."""
    average = state.size // state.entries if state.entries else MAX_BYTES_PER_READ // 8
    return max(1, min(MAX_ENTRIES_PER_READ, MAX_BYTES_PER_READ // max(average, 1)))


async def drop_positions_from(streams: Streams, key: bytes, offset: int) -> None:
    """Remove what the time index says of offsets that are lost."""
    lost: list[tuple[int, int]] = []
    page = 0
    while True:
        points = await streams.index_points(key, page)
        lost += [point for point in points if point[0] >= offset]
        if len(points) < INDEX_PAGE:
            break
        page += 1
    await streams.drop_index(key, lost)


async def _await_replicated(replication: Replication) -> int:
    """How many replicas have everything. One that hangs must not stop this forever."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    replication.when_replicated(partial(resolve, future))
    reached: int = await within(REPLICATED_WITHIN_S, future)
    return reached
