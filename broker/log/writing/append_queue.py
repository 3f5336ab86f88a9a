"""The queue of batches that wait to be appended, and the choice of the next entry. Pure.

A batch is checked when its turn comes, against the state of the log and the batches gathered before
it: duplicates are acknowledged, invalid batches refused. A transactional batch whose producer has
no transaction open here leaves the queue, with every later batch of the same producer, until their
coordinator has named the transaction (verification.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from moldau.broker.errors import ErrorCode, KafkaError, code_for
from moldau.broker.log.state.log_state import Duplicate, LogState, Producer
from moldau.broker.log.writing.append import Append, InFlightEntry
from moldau.broker.log.writing.failed_batches import SENT_AGAIN, FailedBatches
from moldau.broker.log.writing.markers import MarkerAppend
from moldau.broker.wire.batch import CONTROL, NO_PRODUCER_ID, TRANSACTIONAL, BatchHeader

ENTRY_LIMIT = 1 << 20  # bytes gathered into one entry


class AppendQueue:
    """`acknowledge` is called with a duplicate, its offset and its timestamp; `hand_back` with
    batches of one producer, in order, whose coordinator has to be asked."""

    def __init__(
        self,
        acknowledge: Callable[[Append, int, int], None],
        hand_back: Callable[[list[Append]], None],
        clock: Callable[[], float],
        refused: dict[str, int] | None = None,
    ) -> None:
        self._acknowledge = acknowledge
        self._hand_back = hand_back
        self._refused = {} if refused is None else refused  # counts, by the name of the error
        self.waiting: deque[Append] = deque()  # always the same object
        self.rechecked: Append | None = None  # seemed out of order before we caught up
        self.retries = FailedBatches(clock)
        self.wants_to_catch_up = False  # a refusal might be overturned by others' entries

    def put_back(self, entry: InFlightEntry) -> None:
        self.waiting.extendleft(reversed(entry.appends))

    def keep_markers(self, entry: InFlightEntry) -> bool:
        """Queue the markers of an entry again that a full store has refused. False: it has none.

        Markers are needed most then: consumers stop at open transactions, and records that are not
        consumed are not removed. They are sent again in a way that a full store accepts.
        """
        markers = [append for append in entry.appends if isinstance(append, MarkerAppend)]
        if markers:
            entry.appends = [each for each in entry.appends if each not in markers]
            self.waiting.extendleft(reversed(markers))
        return bool(markers)

    def drop_given_up(self) -> None:
        """Drop the batches that clients stopped waiting for, and send again; not the newest."""
        queue = self.waiting
        while queue[0].given_up and len(queue) > 1:
            self.retries.failed(queue.popleft().header)

    def fail(self, append: Append, fault: BaseException) -> None:
        """Its client will send it again, unless the fault is one of its own."""
        if not isinstance(fault, KafkaError) or fault.code in SENT_AGAIN:
            self.retries.failed(append.header)
        error = code_for(fault).name
        self._refused[error] = self._refused.get(error, 0) + 1
        append.done(fault, -1, -1)

    def fail_all(self, fault: BaseException) -> None:
        queued = list(self.waiting)
        self.waiting.clear()
        for append in queued:
            self.fail(append, fault)

    def gather(self, state: LogState, epoch: int, *, only_markers: bool = False) -> InFlightEntry:
        """The next entry, perhaps empty."""
        queue = self.waiting
        entry = InFlightEntry(state.end, state.end, epoch=epoch)
        while queue and (not entry.parts or entry.size + len(queue[0].batch) <= ENTRY_LIMIT):
            append = queue.popleft()
            header = append.header
            if append.given_up:
                self.retries.failed(header)
            elif header.attributes & CONTROL:
                if not self._gather_marker(append, state, entry):
                    break
            elif only_markers:
                queue.appendleft(append)
                break
            elif header.producer_id == NO_PRODUCER_ID:
                entry.add(append, None)
            elif not self._gather_batch(append, state, entry):
                break
        return entry

    def _gather_batch(self, append: Append, state: LogState, entry: InFlightEntry) -> bool:
        """A batch with a producer id. False: it has to wait for the entry before it."""
        header, ahead = append.header, entry.producers
        try:
            duplicate = state.check(header, ahead)
            if self.retries and duplicate is None:
                self.retries.check(header, state.next_sequence(header, ahead))
            if duplicate is None and header.attributes & TRANSACTIONAL:
                _check_first(append, state, ahead)
                if not self._may_join(append, state, ahead):
                    self._hand_back([append, *self._take_all_of(header)])
                    return True
        except KafkaError as refusal:
            if self._may_be_mistaken(append, refusal):
                self.waiting.appendleft(append)
                self.wants_to_catch_up = True
                return False
            append.done(self.retries.answer(header, refusal), -1, -1)
            return True
        if duplicate is not None:
            return self._is_acknowledged(append, duplicate, entry)
        producer = state.advance(header, entry.end, ahead)
        if header.attributes & TRANSACTIONAL and producer.open_from == entry.end:
            entry.begins_transaction(header.producer_id)
        entry.add(append, producer)
        return True

    def _is_acknowledged(self, append: Append, duplicate: Duplicate, entry: InFlightEntry) -> bool:
        if duplicate.base_offset >= entry.base:
            # It repeats a batch of this very entry: both succeed or fail together.
            self.waiting.appendleft(append)
            return False
        # Wait for replicas again: the first reply may have been "too few".
        self._acknowledge(append, duplicate.base_offset, duplicate.timestamp)
        return True

    def _may_join(self, append: Append, state: LogState, ahead: dict[int, Producer]) -> bool:
        participation = append.participation
        assert participation is not None
        is_asked = participation.asked_in == state.epoch_start
        joins = state.joins(append.header, ahead, participation.number if is_asked else 0)
        if joins is False:
            raise KafkaError(
                ErrorCode.TRANSACTION_ABORTABLE,
                f"transaction {participation.number} of {participation.transactional_id!r} has "
                "ended in this partition",
            )
        if joins is None:
            participation.number, participation.asked_in = 0, state.epoch_start
        return bool(joins)

    def _take_all_of(self, header: BatchHeader) -> list[Append]:
        """Everything else of a producer that is queued. Its order must stay as it is."""
        taken: list[Append] = []
        kept: list[Append] = []
        for append in self.waiting:
            mine = append.header.producer_id == header.producer_id
            (taken if mine and append.participation is not None else kept).append(append)
        if taken:
            self.waiting.clear()
            self.waiting.extend(kept)
        return taken

    def _gather_marker(self, append: Append, state: LogState, entry: InFlightEntry) -> bool:
        """False: the one that makes it superfluous is in this very entry."""
        assert isinstance(append, MarkerAppend)
        producer_id, ahead = append.header.producer_id, entry.producers
        if refusal := append.refusal(state, ahead):
            append.done(refusal, -1, -1)
            return True
        if not append.is_needed(state, ahead):
            if producer_id in ahead:
                self.waiting.appendleft(append)
                return False
            self._acknowledge(append, -1, -1)
            return True
        append.number_it(state, ahead)
        end = append.end
        entry.ends_transaction(producer_id, end)
        entry.add(append, state.advance_by_marker(append.header, end, entry.end, ahead))
        return True

    def _may_be_mistaken(self, append: Append, refusal: KafkaError) -> bool:
        """The batch it follows may have gone through another worker: catch up once, then check."""
        if refusal.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or append is self.rechecked:
            return False
        self.rechecked = append
        return True


def _check_first(append: Append, state: LogState, ahead: dict[int, Producer]) -> None:
    """A client that adds partitions by producing to them begins every transaction with a new epoch
    (KIP-890): the first batch of an unknown producer has sequence 0, or some were lost."""
    header, participation = append.header, append.participation
    if participation is None:
        # The request had no transactional id: refused before it gets here.
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    known = ahead.get(header.producer_id) or state.producers.get(header.producer_id)
    if known is None and participation.adds and header.base_sequence:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} is not known here and begins with sequence "
            f"{header.base_sequence}",
        )
