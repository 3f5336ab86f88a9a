"""Loading a log: read its snapshot and the entries after it, and prove that none is missing."""

from __future__ import annotations

import asyncio
import logging

from moldau.broker.log.history import LogHistory
from moldau.broker.log.reading.entries import end_of
from moldau.broker.log.reading.reader import LogReader
from moldau.broker.log.state.log_state import LogState
from moldau.broker.store.log_history import Floor, Outcome, Proof
from moldau.broker.store.streams import INDEX_PAGE, LastId, SavedState, Streams

logger = logging.getLogger("moldau.log")

MAX_ENTRIES_PER_READ = 64
MAX_BYTES_PER_READ = 4 << 20  # about: of the store's memory and ours, for each log that reads
CHANGED_AGAIN_S = 0.01
NO_LIMIT = 1 << 63


class Loading:
    """`floor`: what this worker has known of the log under an earlier history."""

    def __init__(
        self, streams: Streams, history: LogHistory, reader: LogReader, floor: Floor
    ) -> None:
        self._streams = streams
        self._history = history
        self._reader = reader
        self._floor = floor

    async def run(self) -> tuple[LogState, int]:
        """The fold, and up to where this worker may append. Raises StoreFault."""
        reader = self._reader
        begun: dict[tuple[bytes, int], LogState] = {}  # folds, by token and the epoch begun with it
        while True:
            token = self._history.token
            # In one command: another worker may be about to begin an epoch, and whoever takes the
            # log for proved has to know of it.
            saved = await self._streams.saved_state(reader.key, self._history.worker)
            reader.start_loaded(saved.start, may_go_back=True)
            is_proved = saved.history == token
            if is_proved and (state := begun.get((token, reader.epochs.current))) is not None:
                state.begin_epoch(reader.epochs.start)
                return state, saved.reserved
            last_id, state = await (
                self._fold_proved(saved) if is_proved else self._fold_unproved(saved)
            )
            if is_proved and state.end >= last_id.end:
                return state, saved.reserved
            proof = await self._history.prove(reader.key, last_id.text, state.end, self._floor)
            if proof.outcome is Outcome.WHOLE:
                return state, 0
            if proof.outcome is Outcome.GONE:
                return state, NO_LIMIT  # there is nothing to reserve in: the append will show that
            if proof.outcome is Outcome.NEW_EPOCH:
                await self._began_epoch(state, proof)
                begun[token, proof.epoch] = state
            elif proof.outcome is Outcome.CHANGED:
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

    # The last id is read first: the proof notices every later append.

    async def _fold_proved(self, saved: SavedState) -> tuple[LastId, LogState]:
        return await asyncio.gather(self._streams.last_id(self._reader.key), self._fold(saved))

    async def _fold_unproved(self, saved: SavedState) -> tuple[LastId, LogState]:
        """Read the state of a log that may have lost entries.

        A snapshot that knows more than the log has ever had is of no use.
        """
        key = self._reader.key
        last_id, last, state = await asyncio.gather(
            self._streams.last_id(key), self._streams.last_entry(key), self._fold(saved)
        )
        end = max(end_of(last) if last is not None else 0, self._reader.epochs.start)
        # Unless the last entry was removed: then only the snapshot knows where it ended.
        if state.end > end >= last_id.end:
            logger.warning("%r: its snapshot is beyond its end %d", self._reader, end)
            state = await self._fold(saved, use_snapshot=False)
        return last_id, state

    async def _began_epoch(self, state: LogState, proof: Proof) -> None:
        reader, end = self._reader, state.end
        if proof.floor > end:
            logger.critical(
                "%r LOST OFFSETS %d TO %d: the store does not have these records any more. "
                "It goes on at offset %d, in leader epoch %d",
                *(reader, end, proof.floor - 1, proof.start, proof.epoch),
            )
        else:
            logger.warning(
                "%r may have lost offsets from %d on, when the store was restarted or failed over; "
                "no running worker knew any. It goes on at offset %d, in leader epoch %d",
                *(reader, end, proof.start, proof.epoch),
            )
        await asyncio.gather(
            drop_positions_from(self._streams, reader.key, end + 1),
            self._streams.drop_aborted(reader.key, end, "+inf"),
            self._history.epoch_begun(reader.topic, reader.partition, reader.key, proof.epoch),
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
