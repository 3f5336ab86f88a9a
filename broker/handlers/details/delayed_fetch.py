"""Reads several logs for one Fetch, and waits until there is enough (Kafka's DelayedFetch).

    start     wait until every log is loaded and, without notices of appends, brought up to date
    collect   read each log from the tail cache or the store; done if that is enough
    park      wait for appends to any of the logs, then collect again; the timer only ends the wait

Appends wake a waiting fetch; nothing polls. With read_committed a log ends at its last stable
offset instead of its high watermark, and the reply lists the aborted transactions among the
records, which consumers skip.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, StoreFault, read_code_for
from moldau.broker.handlers.details.lookup import epoch_error
from moldau.broker.log.log import Bounds, Log
from moldau.broker.metrics.loop_clock import loop_clock
from moldau.broker.server.call import Call
from moldau.broker.store.aborted import AbortedTransaction
from moldau.broker.store_loss.epochs import NO_EPOCH, UNDEFINED
from moldau.broker.wire.batch import Buffer, headers
from moldau.broker.wire.messages.fetch import FetchRequest

READ_COMMITTED = 1  # as isolation level
UNKNOWN_BOUNDS: Bounds = (-1, -1, -1, -1)


class PartitionRead:
    """One partition of a fetch: the request and its result."""

    __slots__ = (
        "aborted", "bounds", "diverging", "epoch", "error", "fetched_epoch", "limit", "log",
        "offset", "records",
    )  # fmt: skip

    def __init__(
        self, offset: int, limit: int, epoch: int = NO_EPOCH, fetched_epoch: int = NO_EPOCH
    ) -> None:
        self.offset = offset
        self.limit = limit
        self.epoch = epoch  # the leader epoch that the client knows
        self.fetched_epoch = fetched_epoch  # the epoch of the client's last record
        self.diverging = UNDEFINED  # epoch and end: later records of the client are not in the log
        self.log: Log | None = None  # None when there is nothing to read: see `error`
        self.error: int = 0
        self.bounds = UNKNOWN_BOUNDS
        self.records: list[Buffer] | bytes = b""
        self.aborted: Sequence[AbortedTransaction] = ()

    @classmethod
    def failed(cls, code: ErrorCode) -> Self:
        read = cls(0, 0)
        read.fail(code)
        return read

    def fail(self, code: ErrorCode) -> None:
        self.error = code
        self.log = None
        self.records = b""

    def found(
        self,
        bounds: Bounds,
        records: list[Buffer],
        aborted: Sequence[AbortedTransaction],
    ) -> None:
        """Set all of it together: if the wait ended in between, aborted records would be returned
        without the list that marks them."""
        self.bounds = bounds
        self.records = records
        self.aborted = aborted

    def check_fetched(self, log: Log) -> bool:
        """KIP-595: does the log still have the last record the client has?"""
        epoch, end = log.end_of_epoch(self.fetched_epoch)
        if end < 0 or self.offset < log.start:
            self.fail(ErrorCode.OFFSET_OUT_OF_RANGE)
        elif epoch < self.fetched_epoch or end < self.offset:
            self.diverging = (epoch, end)
            self.log = None
        else:
            return True
        self.bounds = log.bounds()
        return False


Reply = Callable[[Broker, Call, FetchRequest, list[PartitionRead]], None]


class DelayedFetch:
    """One Fetch request, from its arrival to its reply. To its logs it is a `FetchClient`."""

    def __init__(
        self,
        broker: Broker,
        call: Call,
        request: FetchRequest,
        reads: list[PartitionRead],
        reply: Reply,
    ) -> None:
        self._broker = broker
        self._call = call
        self._request = request
        self._reads = reads
        self._reply = reply
        self.reads_committed = request.isolation_level == READ_COMMITTED
        self._limit = max(min(request.max_bytes, broker.fetch_max_bytes), 0)
        self._min_bytes = request.min_bytes
        if call.is_metered and (room := call.fetch_room) is not None:  # the quota allows no more
            self._limit = min(self._limit, room)
            self._min_bytes = min(self._min_bytes, room)
        self._size = 0
        self._pending = 0
        self._finished = False
        self._is_outdated = False  # a log was trimmed or compacted meanwhile
        self._known_before = 0  # bytes of its logs when reading began
        self._seen_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._parked_ns = 0

    @property
    def client_id(self) -> str:
        return self._call.header.client_id or ""

    @property
    def client_host(self) -> str:
        return self._call.peer

    # --- reading ---

    def start(self) -> None:
        self._pending = 1
        for read in self._reads:
            log = read.log
            if log is not None and not log.can_read(read.offset, self):
                self._pending += 1
                log.when_readable(read.offset, self, partial(self._readable, read, log))
        self._one_readable()

    def _readable(self, read: PartitionRead, log: Log, fault: BaseException | None) -> None:
        if fault is not None:
            read.fail(read_code_for(fault))
        elif self._request.max_wait_ms > 0:
            self._broker.logs.watch(log)
        self._one_readable()

    def _one_readable(self) -> None:
        self._pending -= 1
        if self._pending == 0:
            self._collect()

    def _collect(self) -> None:
        """Read every partition, from the tail cache if possible, otherwise from the store."""
        self._known_before = self._bytes_known()
        self._size = 0
        committed = self.reads_committed
        counters = self._broker.logs.counters
        budget = self._call.connection.budget
        left = min(self._limit, budget.reply_room)
        first = True  # one batch is returned whatever its size
        self._pending = 1
        for read in self._reads:
            log = read.log
            if log is None:
                continue
            # Each time, since the log may have lost its end while the fetch waited.
            if read.epoch != NO_EPOCH and read.epoch != log.leader_epoch:
                read.fail(epoch_error(log, read.epoch))
                read.epoch = log.leader_epoch
                continue
            if read.fetched_epoch != NO_EPOCH and not read.check_fetched(log):
                continue
            bounds = log.bounds()
            start, end, high_watermark, last_stable_offset = bounds
            offset = read.offset
            if not start <= offset <= end:
                read.fail(ErrorCode.OFFSET_OUT_OF_RANGE)
                read.bounds = bounds  # the current bounds, which Kafka leaves out
                continue
            reader = log.reader_for(self)
            readable = last_stable_offset if committed else high_watermark
            if (offset >= readable and reader.is_at_end(offset)) or (left <= 0 and not first):
                read.bounds = bounds
                continue
            limit = min(read.limit, left)
            found = reader.read_tail(offset, limit, at_least_one=first)
            if found is None:
                counters.misses += 1
                left -= limit
                budget.hold(limit)
                self._pending += 1
                done = partial(self._read_from_store, read, log, limit)
                reader.read_store(offset, limit, at_least_one=first, done=done)
                first = False
            elif found:
                counters.hits += 1
                left -= self._take(read, log, bounds, found)
                first = False
            else:
                read.bounds = bounds
        self._one_read()

    def _take(self, read: PartitionRead, log: Log, bounds: Bounds, found: list[Buffer]) -> int:
        size = sum(map(len, found))
        self._size += size
        log.counters.bytes_out += size
        if self.reads_committed and found and log.has_aborted:
            self._pending += 1
            end = _end_of(found[-1])
            done = partial(self._aborted_found, read, bounds, found)
            log.find_aborted(read.offset, end, done)
        else:
            read.found(bounds, found, ())
        return size

    def _aborted_found(
        self,
        read: PartitionRead,
        bounds: Bounds,
        found: list[Buffer],
        aborted: list[AbortedTransaction] | StoreFault | None,
    ) -> None:
        if aborted is None:
            self._is_outdated = True
        elif isinstance(aborted, StoreFault):
            read.bounds = bounds
            read.fail(read_code_for(aborted))
        else:
            read.found(bounds, found, aborted)
        self._one_read()

    def _read_from_store(
        self, read: PartitionRead, log: Log, held: int, got: list[Buffer] | StoreFault
    ) -> None:
        self._call.connection.budget.release(held)
        if isinstance(got, StoreFault):
            read.fail(read_code_for(got))
        else:
            self._take(read, log, log.bounds(), got)
        self._one_read()

    def _one_read(self) -> None:
        self._pending -= 1
        if self._pending or self._finished:
            return
        if self._is_outdated:
            self._is_outdated = False
            self._collect()
        elif (
            self._size >= self._min_bytes
            or self._request.max_wait_ms <= 0
            or self._call.connection.closing  # draining or lost: no append would wake the fetch
            or any(read.log is None for read in self._reads)
        ):
            self.finish()
        elif self._timer is None:
            self._park()
        else:
            self._wait()

    # --- waiting ---

    def _park(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._request.max_wait_ms / 1000, self._waited_long_enough)
        self._call.on_lost = self._abandon
        self._parked_ns = loop_clock.now_ns
        self._broker.parked.add(self)
        self._wait()

    def _wait(self) -> None:
        self._seen_bytes = self._known_before - self._size
        self._wait_for_appends()
        for read in self._reads:
            if read.log is not None:
                self._broker.logs.watch(read.log)  # tailing may have ended meanwhile
        if self._bytes_known() != self._known_before:
            self._woken()  # something was appended meanwhile

    def _wait_for_appends(self) -> None:
        for read in self._reads:
            if read.log is not None:
                read.log.waiters.add(self, self._woken)

    def _bytes_known(self) -> int:
        if self.reads_committed:
            return sum(read.log.bytes_stable for read in self._reads if read.log is not None)
        return sum(read.log.bytes_known for read in self._reads if read.log is not None)

    def _woken(self) -> None:
        if self._finished:
            return
        if any(read.log is not None and not read.log.is_loaded for read in self._reads):
            self._stop_waiting()
            self.start()  # it finds the deleted logs, and replies at once
        elif self._bytes_known() - self._seen_bytes >= self._min_bytes:
            self._stop_waiting()
            self._collect()
        else:
            self._wait_for_appends()

    def _waited_long_enough(self) -> None:
        if self._broker.settings.workers > 1:
            # In case a notice was lost: the client's next fetch sees the new end.
            for read in self._reads:
                if read.log is not None:
                    read.log.look()
        self.finish()

    def _stop_waiting(self) -> None:
        for read in self._reads:
            if read.log is not None:
                read.log.waiters.discard(self)

    def _abandon(self) -> None:
        self._finished = True
        self._unpark()

    def _unpark(self) -> None:
        if self._timer is not None:
            self._stop_waiting()
            self._timer.cancel()
            self._broker.parked.discard(self)

    def finish(self) -> None:
        """Reply with what was found."""
        if not self._finished:
            self._finished = True
            self._unpark()
            if self._parked_ns:
                # The wait for records does not count as the duration of the request.
                waited = loop_clock.read() - self._parked_ns
                self._call.received_ns += waited
                self._call.connection.counters.fetch_wait.observe(waited)
            self._reply(self._broker, self._call, self._request, self._reads)


def _end_of(batches: Buffer) -> int:
    """The offset after the last batch."""
    end = -1
    for header in headers(batches):
        end = header.next_offset
    return end
