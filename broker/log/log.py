"""The interface of a partition's log, which handlers are written against.

`PartitionLog` (partition.py) keeps Kafka's record batches; `NativeLog` (native/log.py) is a stream
that Redis applications write and read as well. No caller asks which of them it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from moldau.broker.errors import Callback, ErrorCode, KafkaError
from moldau.broker.log.callbacks import Completion, await_callback
from moldau.broker.log.counting import CountBudget
from moldau.broker.log.state.log_state import Producer
from moldau.broker.log.writing.append import Append, Marker
from moldau.broker.metrics.log_counters import TopicCounters
from moldau.broker.private.table import Counts
from moldau.broker.settings.kafka import TopicConfig
from moldau.broker.store.aborted import AbortedTransaction
from moldau.broker.store.watch import Watcher
from moldau.broker.store_loss.epochs import EPOCH_ZERO, UNDEFINED, Epochs
from moldau.broker.wire.batch import Buffer

NO_TIMESTAMP = -1


class Waiters:
    """Each is called once, by the next `wake`, and has to register again to wait on."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[object, Callable[[], None]] = {}

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def add(self, waiter: object, wake: Callable[[], None]) -> None:
        self.waiting[waiter] = wake

    def discard(self, waiter: object) -> None:
        self.waiting.pop(waiter, None)

    def wake(self) -> None:
        """There is something new, or the log is gone."""
        if self.waiting:
            waiting, self.waiting = self.waiting, {}
            for wake in waiting.values():
                wake()


# Log start offset, log end offset, high watermark, last stable offset. A plain tuple: every Fetch
# makes one for each of its partitions.
Bounds = tuple[int, int, int, int]

ReadDone = Callback[list[Buffer]]
# None: the log was trimmed or compacted meanwhile, and what was read has to be read again.
AbortedFound = Callback[list[AbortedTransaction] | None]


class OffsetAndTimestamp(NamedTuple):
    offset: int
    timestamp: int


class FetchClient(Protocol):
    """Where a Fetch comes from: all that the protocol tells of its sender."""

    @property
    def client_id(self) -> str: ...
    @property
    def client_host(self) -> str: ...
    @property
    def reads_committed(self) -> bool: ...


class FetchReader(Protocol):
    """Reads a log for one client: whole batches from an offset on."""

    def is_at_end(self, offset: int) -> bool:
        """Is there nothing to read at `offset`, nor anything else to do for this client?"""

    def read_tail(self, offset: int, limit: int, *, at_least_one: bool) -> list[Buffer] | None:
        """Batches from memory, at most `limit` bytes; None when the store has to be asked.

        With `at_least_one` the first batch is returned whatever its size.
        """

    def read_store(self, offset: int, limit: int, *, at_least_one: bool, done: ReadDone) -> None:
        """`read_tail` from the store."""


class Log(ABC):
    """One partition."""

    is_gone = False  # the topic was deleted

    def __init__(self, topic: str, partition: int, key: bytes) -> None:
        self.topic = topic
        self.partition = partition
        self.key = key  # of the stream
        self.waiters = Waiters()
        self.counters = TopicCounters()  # its worker's for the topic, once that knows the log

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def epochs(self) -> Epochs:
        """The leader epochs of a log that is loaded. A native log is always in epoch 0."""
        return EPOCH_ZERO

    @property
    def leader_epoch(self) -> int:
        """The current one: raised when the log may have lost its end. Which worker leads does not
        count, as any may append."""
        return self.epochs.current

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Where an epoch ended: the largest one known up to it and its end offset, or -1 and -1.

        Not before the log start: a consumer that steps back to it must find the log there.
        """
        known, end = self.epochs.end_of(epoch, self.end)
        return (known, max(end, self.start)) if end >= 0 else UNDEFINED

    # --- bounds ---

    @property
    @abstractmethod
    def start(self) -> int:
        """The log start offset."""

    @property
    @abstractmethod
    def end(self) -> int:
        """The log end offset, as far as this worker knows."""

    def bounds(self) -> Bounds:
        """The bounds of a log without transactions, in which every stored record is committed."""
        end = self.end
        return self.start, end, end, end

    @property
    @abstractmethod
    def earliest(self) -> int:
        """The offset a consumer starts at that wants everything there is."""

    @property
    @abstractmethod
    def bytes_known(self) -> int:
        """Grows with every entry this worker learns of: what a waiting Fetch counts."""

    @property
    def records_known(self) -> int:
        """All that were ever appended, where offsets tell."""
        return 0

    @property
    def bytes_stable(self) -> int:
        """`bytes_known` below the last stable offset, for read_committed."""
        return self.bytes_known

    # --- keeping up with other writers ---

    @property
    @abstractmethod
    def is_loaded(self) -> bool: ...

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Are appends under way?"""

    @property
    @abstractmethod
    def is_watched(self) -> bool:
        """Is this worker notified of what others append?"""

    @abstractmethod
    def tail_with(self, watcher: Watcher) -> bool:
        """Be notified from now on. False when the stream is tailed already, for another topic."""

    def untailed(self) -> None:  # noqa: B027
        """The watcher does not tail the stream any more."""

    @abstractmethod
    def received(self, entries: list[Any]) -> None:
        """Entries from the watcher, in the form that `tail_with` asked for."""

    @abstractmethod
    def look(self) -> None:
        """Others may have appended: find out."""

    def store_changed(self) -> None:
        """The store may have lost entries: forget what is known of the log."""
        self.look()

    @abstractmethod
    def when_loaded(self, done: Completion) -> None:
        """Call `done` once the bounds are known at all; at once when they are."""

    @abstractmethod
    def when_current(self, done: Completion) -> None:
        """Call `done` once everything that is in the log now is known of."""

    async def current(self) -> None:
        """`when_current` as a coroutine."""
        await await_callback(self.when_current)

    @abstractmethod
    async def load_start(self) -> None:
        """Read where the log starts."""

    @abstractmethod
    def gone(self) -> None:
        """The topic was deleted: nothing more can be appended or read."""

    # --- producing and fetching ---

    @abstractmethod
    def append(self, append: Append) -> None:
        """Append a batch; `append.done` is called with its offset or the fault."""

    def write_marker(self, marker: Marker, done: Completion) -> None:
        """End a transaction here, unless this marker is in the log. Nothing to do where no records
        are part of transactions."""
        done(None)

    def can_read(self, offset: int, client: FetchClient) -> bool:
        """Can this client be served at `offset` right away?"""
        return self.is_watched and self.is_loaded and offset <= self.end

    def when_readable(self, offset: int, client: FetchClient, done: Completion) -> None:
        """Call `done` once it can."""
        if self.is_watched and not self.is_loaded:
            self.when_loaded(done)
        else:
            # Also beyond the end of a watched log: the notice of an append may be on its way, and
            # OFFSET_OUT_OF_RANGE would reset the consumer's position.
            self.when_current(done)

    @abstractmethod
    def reader_for(self, client: FetchClient) -> FetchReader: ...

    @property
    def has_aborted(self) -> bool:
        """Was a transaction aborted here?"""
        return False

    def find_aborted(self, offset: int, end: int, done: AbortedFound) -> None:
        """Call `done` with the aborted transactions that reach into what is read from `offset` to
        `end`, by their first offsets."""
        done([])

    # --- looking up ---

    def producers(self) -> Mapping[int, Producer]:
        """The idempotent and transactional producers that are known, by id."""
        return {}

    @abstractmethod
    async def offset_for_timestamp(self, timestamp: int) -> OffsetAndTimestamp | None:
        """The first record whose timestamp is at least `timestamp`."""

    @abstractmethod
    async def offset_of_largest_timestamp(self) -> OffsetAndTimestamp | None:
        """The first record with the largest timestamp (KIP-734)."""

    @abstractmethod
    async def size_in_store(self) -> int:
        """Bytes."""

    # --- counting ---

    has_consecutive_offsets = True  # they count records, but for the gaps of epochs

    async def counts(self) -> tuple[int, int]:
        """How many records there are, and how many there ever were."""
        return self.epochs.count(self.start, self.end), self.records_known

    async def count_from(self, wanted: Sequence[tuple[str, int]], budget: CountBudget) -> Counts:
        """How many records follow each offset; `wanted`: groups and the offsets they committed."""
        await self.current()
        return [self.epochs.count(max(offset, self.start), self.end) for _, offset in wanted]

    # --- removing ---

    async def delete_records(self, offset: int) -> int:
        """Raise the log start to `offset` (-1: to the end); returns the new log start."""
        if offset == -1:
            offset = self.end
        if not 0 <= offset <= self.end:
            text = f"offset {offset} is not in 0..{self.end}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        return await self.delete_before(offset)

    @abstractmethod
    async def delete_before(self, offset: int) -> int:
        """`delete_records` for an offset within the log."""

    @abstractmethod
    async def enforce_retention(self, config: TopicConfig, now_ms: int) -> None: ...

    # --- consumer groups, where Redis shows them ---

    async def pending(self) -> dict[str, int]:
        """The number of entries that each group was given and has not committed."""
        return {}

    def offset_committed(self, group_id: str, offset: int) -> None:  # noqa: B027
        """A group committed an offset."""

    async def group_position(self, group_id: str) -> int | None:
        """Where a group stands that has committed nothing, if the store knows."""
        return None

    def group_changed(self, group_id: str) -> None:  # noqa: B027
        """The members of a group, or what they are assigned, have changed."""


def topic_gone() -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
