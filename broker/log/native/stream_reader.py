"""Reading a native stream: entries become record batches on the way, nothing is cached."""

from __future__ import annotations

import logging
from collections.abc import Callable

from moldau.broker.errors import StoreFault, StoreRefused
from moldau.broker.log.log import ReadDone
from moldau.broker.log.native.batching import Delivery, to_batches
from moldau.broker.log.native.ids import Run
from moldau.broker.log.native.view import MAX_ENTRIES_PER_READ, NativeView
from moldau.broker.settings.kafka import TopicConfig
from moldau.broker.store.native import NativeStreams, RawEntries

logger = logging.getLogger("moldau.log")

FIRST_COUNT = 32  # of entries, before any was read: they may be large


class StreamReader:
    """The `FetchReader` of clients that are no known member of a group."""

    def __init__(
        self, native: NativeStreams, view: NativeView, config: Callable[[], TopicConfig]
    ) -> None:
        self._native = native
        self.view = view
        self._config = config

    def __repr__(self) -> str:
        return repr(self.view)

    @property
    def value_field(self) -> bytes | None:
        return self._config().native_value.encode() or None

    def is_at_end(self, offset: int) -> bool:
        return offset == self.view.end and self.view.is_plain

    def read_tail(self, offset: int, limit: int, *, at_least_one: bool) -> None:
        """Nothing is cached."""
        return

    def read_store(self, offset: int, limit: int, *, at_least_one: bool, done: ReadDone) -> None:
        run = self.view.numbering.start_at(offset)

        def again(fault: StoreFault | None) -> None:
            if fault is not None:
                done(fault)
            else:
                self.read_store(offset, limit, at_least_one=at_least_one, done=done)

        def got(marks: int | StoreFault, entries: RawEntries | StoreFault) -> None:
            if isinstance(entries, StoreFault):
                done(entries)
            elif isinstance(marks, StoreFault):
                done(marks)
            elif marks > len(self.view.numbering.noted):
                self.view.learn_marks(again)
            else:
                try:
                    found = to_batches(
                        entries, run, self.value_field, limit, at_least_one=at_least_one
                    )
                except Exception as fault:
                    # A fault of ours, or entries of an unexpected form: the client must not wait.
                    logger.exception(
                        "%r: entries at offset %d cannot be delivered", self.view, offset
                    )
                    done(StoreRefused(str(fault)))
                    return
                self.deliver(run, found, done)

        count = self.count_for(limit)
        self._native.read(self.view.key, self.view.base, bytes(run.first), count, limit, got)

    def count_for(self, limit: int) -> int:
        """How many entries to ask for: about as many as fit."""
        if not self.view.average_size:
            return FIRST_COUNT
        return max(1, min(limit // self.view.average_size, MAX_ENTRIES_PER_READ))

    def deliver(self, run: Run, found: Delivery, done: ReadDone) -> None:
        """Hand records to a fetch; irregular offsets among them are noted first."""
        view = self.view
        if found.taken:
            # Rounded up, and growth counts in full, so that little is read in vain.
            now = -(-found.size // found.taken)
            view.average_size = max(now, (view.average_size + now) // 2)
            view.end = max(view.end, found.last_offset + 1)
        if run.misfits or run.marks:
            view.host.spawn(self._note_and_deliver(run, found, done))
        else:
            done(list(found.batches))

    async def _note_and_deliver(self, run: Run, found: Delivery, done: ReadDone) -> None:
        try:
            await self.view.note(run)
        except StoreFault as fault:
            done(fault)
        else:
            done(list(found.batches))
