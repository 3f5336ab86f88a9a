"""What a worker knows of a log is a fold over it: the laws, and behaviour 4.1 case by case."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.state.log_state import (
    REMEMBERED_BATCHES,
    SEQUENCE_MODULUS,
    Duplicate,
    LogState,
    Producer,
)
from moldau.broker.wire.batch import CONTROL, HEADER, TRANSACTIONAL, BatchHeader
from moldau.broker.wire.control import EndMarker

LAST_SEQUENCE = (1 << 31) - 1


def batch(
    producer: int,
    sequence: int,
    records: int = 1,
    epoch: int = 0,
    *,
    offset: int = 0,
    timestamp: int = 1_000,
) -> BatchHeader:
    return BatchHeader(
        base_offset=offset,
        length=88,
        leader_epoch=0,
        magic=2,
        crc=0,
        attributes=0,
        last_offset_delta=records - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=records,
    )


def placed(header: BatchHeader, offset: int) -> BatchHeader:
    return header._replace(base_offset=offset)


class Log:
    """A log as a worker writes it: checks, appends, and keeps the headers."""

    def __init__(self) -> None:
        self.state = LogState()
        self.headers: list[BatchHeader] = []

    def append(self, header: BatchHeader) -> int | Duplicate:
        """Where it was appended; a duplicate; or KafkaError."""
        duplicate = self.state.check(header, {})
        if duplicate is not None:
            return duplicate
        offset = self.state.end
        changed = {}
        if header.producer_id != -1:
            changed[header.producer_id] = self.state.advance(header, offset, {})
        end = offset + header.last_offset_delta + 1
        self.state.appended(end, 100, header.max_timestamp, offset, changed)
        self.headers.append(placed(header, offset))
        return offset

    def refusal(self, header: BatchHeader) -> ErrorCode:
        with pytest.raises(KafkaError) as refused:
            self.append(header)
        return refused.value.code


def entry(*headers: BatchHeader) -> bytes:
    """An entry as it lies in a log, with 100 bytes for each batch."""
    return b"".join(HEADER.pack(*header).ljust(header.size, b"\0") for header in headers)


def fold(headers: list[BatchHeader]) -> LogState:
    state = LogState()
    for header in headers:
        state.apply(entry(header))
    return state


# --- 4.1, case by case ---


def test_4_1_unknown_producer_may_begin_with_any_sequence() -> None:
    for first in (0, 1, 77, LAST_SEQUENCE):
        assert Log().append(batch(1, first)) == 0


def test_4_1_the_next_sequence_must_follow() -> None:
    log = Log()
    assert log.append(batch(1, 10, 5)) == 0
    assert log.append(batch(1, 15, 3)) == 5
    for wrong in (16, 17, 19, 14, 0, LAST_SEQUENCE):
        assert log.refusal(batch(1, wrong)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(batch(1, 18)) == 8


def test_4_1_each_of_the_last_five_batches_is_recognised_and_gets_its_old_offset() -> None:
    log = Log()
    sent = [batch(1, number * 3, 3, timestamp=number) for number in range(9)]
    for header in sent:
        log.append(header)
    for header in sent[-5:]:
        place = header.base_sequence  # here offsets and sequences are the same
        assert log.append(header) == Duplicate(place, header.max_timestamp)
    assert log.state.end == 27


def test_4_1_the_sixth_last_is_out_of_order() -> None:
    log = Log()
    sent = [batch(1, number) for number in range(6)]
    for header in sent:
        log.append(header)
    assert log.refusal(sent[0]) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(sent[1]) == Duplicate(1, 1_000)


def test_4_1_only_exactly_the_same_sequences_are_a_duplicate() -> None:
    log = Log()
    log.append(batch(1, 0, 10))
    for header in (batch(1, 0, 9), batch(1, 0, 11), batch(1, 1, 9), batch(1, 5, 5)):
        assert log.refusal(header) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(batch(1, 0, 10)) == Duplicate(0, 1_000)


def test_4_1_sequences_wrap_after_the_largest_int() -> None:
    log = Log()
    log.append(batch(1, LAST_SEQUENCE - 4, 5))
    assert log.refusal(batch(1, LAST_SEQUENCE)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(batch(1, 0)) == 5


def test_4_1_a_batch_may_wrap_in_its_middle() -> None:
    log = Log()
    wrapping = batch(1, LAST_SEQUENCE - 1, 5)  # ..., MAX, 0, 1, 2
    assert log.append(wrapping) == 0
    assert log.append(wrapping) == Duplicate(0, 1_000)
    assert log.refusal(batch(1, 4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(batch(1, 3)) == 5


def test_a_transaction_that_an_earlier_leader_epoch_left_open_is_asked_about() -> None:
    """It may be the one before: its marker may be lost."""
    state = LogState()
    first, second = (batch(7, at)._replace(attributes=TRANSACTIONAL) for at in range(2))
    assert state.joins(first, {}, 0) is None
    state.producers[7] = state.advance(first, 0, {})
    assert state.joins(second, {}, 0) is True
    state.begin_epoch(100)
    assert state.joins(second, {}, 0) is None
    assert state.joins(second, {}, 2) is True
    assert state.joins(second, {7: state.advance(second, 100, {})}, 0) is None


def test_a_marker_that_is_written_again_hides_no_loss() -> None:
    """The loss is of batches behind the last one: the producer does not send them again."""
    state = LogState()
    state.producers[7] = state.advance(batch(7, 0), 0, {})
    state.begin_epoch(100)
    marker = batch(7, -1)._replace(attributes=TRANSACTIONAL | CONTROL)
    state.producers[7] = state.advance_by_marker(marker, EndMarker(True, 1), 100, {})
    assert state.check(batch(7, 5), {}) is None
    state.producers[7] = state.advance(batch(7, 5), 101, {})
    with pytest.raises(KafkaError):
        state.check(batch(7, 8), {})


def test_4_1_a_new_epoch_starts_at_zero() -> None:
    log = Log()
    log.append(batch(1, 0, 7))
    for wrong in (1, 7, LAST_SEQUENCE):
        assert log.refusal(batch(1, wrong, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(batch(1, 0, 7, epoch=1)) == 7  # not a duplicate: another epoch
    assert log.append(batch(1, 7, epoch=1)) == 14


def test_4_1_a_lower_epoch_is_refused_even_with_what_was_once_appended() -> None:
    log = Log()
    log.append(batch(1, 0, epoch=3))
    log.append(batch(1, 0, epoch=4))
    for header in (batch(1, 0, epoch=3), batch(1, 1, epoch=3), batch(1, 1, epoch=0)):
        assert log.refusal(header) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.append(batch(1, 1, epoch=4)) == 2


def test_4_1_producers_do_not_meet() -> None:
    log = Log()
    log.append(batch(1, 0))
    log.append(batch(2, 50))
    assert log.append(batch(1, 1)) == 2
    assert log.append(batch(2, 51)) == 3
    assert log.append(batch(1, 0)) == Duplicate(0, 1_000)


def test_4_1_without_a_producer_id_everything_is_appended() -> None:
    log = Log()
    same = batch(-1, -1, epoch=-1)
    assert [log.append(same) for _ in range(3)] == [0, 1, 2]
    assert log.state.producers == {}


def test_4_1_a_refused_check_leaves_no_trace() -> None:
    log = Log()
    log.append(batch(1, 0))
    before = log.state.snapshot()
    log.refusal(batch(1, 9))
    log.refusal(batch(1, 9, epoch=1))
    assert log.state.snapshot() == before


# --- laws ---

steps = st.lists(
    st.tuples(
        st.sampled_from([-1, 1, 1, 2, 3]),  # producer
        st.integers(1, 4),  # records
        st.sampled_from(["next", "next", "next", "again", "older", "skip", "epoch"]),
        st.integers(0, 50),  # timestamp
    ),
    max_size=40,
)


class Client:
    """A producer that does what a step says, and what the broker has to answer."""

    def __init__(self, number: int, first: int) -> None:
        self.number = number
        self.epoch = 0
        self.next = first
        self.sent: list[BatchHeader] = []

    def header(self, what: str, records: int, timestamp: int) -> BatchHeader:
        if what == "again" and self.sent:
            return self.sent[-1]
        if what == "older" and len(self.sent) > REMEMBERED_BATCHES:
            return self.sent[-REMEMBERED_BATCHES - 1]
        if what == "epoch":
            self.epoch += 1
            self.next = 0
            self.sent.clear()
        sequence = (self.next + (2 if what == "skip" else 0)) % SEQUENCE_MODULUS
        return batch(self.number, sequence, records, self.epoch, timestamp=timestamp)

    def appended(self, header: BatchHeader) -> None:
        self.sent.append(header)
        self.next = (header.base_sequence + header.record_count) % SEQUENCE_MODULUS


@settings(max_examples=300)
@given(steps, st.sampled_from([0, 5, LAST_SEQUENCE - 3]))
def test_4_1_law_appended_once_in_order_and_the_state_is_the_fold(
    script: list[tuple[int, int, str, int]], first: int
) -> None:
    log = Log()
    clients = {number: Client(number, first) for number in (1, 2, 3)}
    for number, records, what, timestamp in script:
        if number == -1:
            log.append(batch(-1, -1, records, -1, timestamp=timestamp))
            continue
        client = clients[number]
        known = bool(client.sent)
        header = client.header(what, records, timestamp)
        try:
            outcome = log.append(header)
        except KafkaError as refusal:
            assert refusal.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # noqa: PT017
            assert what in ("skip", "older")
            assert known or client.epoch
        else:
            if isinstance(outcome, Duplicate):
                assert what == "again"
            else:
                client.appended(header)

    # Each producer's records are in the log in order, each once, also over wraps and epochs.
    for number in clients:
        last = None
        for header in log.headers:
            if header.producer_id != number:
                continue
            if last is not None and header.producer_epoch == last.producer_epoch:
                expected = (last.base_sequence + last.record_count) % SEQUENCE_MODULUS
                assert header.base_sequence == expected
            elif last is not None:
                assert header.producer_epoch > last.producer_epoch
                assert header.base_sequence == 0
            last = header
    # Offsets are dense.
    end = 0
    for header in log.headers:
        assert header.base_offset == end
        end = header.next_offset
    assert log.state.end == end
    # A worker that reads the log has the same state.
    assert fold(log.headers).snapshot() == log.state.snapshot()


@settings(max_examples=200)
@given(steps, st.integers(0, 40))
def test_4_1_law_a_snapshot_and_the_rest_equal_the_whole(
    script: list[tuple[int, int, str, int]], cut: int
) -> None:
    log = Log()
    clients = {number: Client(number, 0) for number in (1, 2, 3)}
    for number, records, what, timestamp in script:
        if number == -1 or what in ("skip", "older", "again"):
            log.append(batch(-1, -1, records, -1, timestamp=timestamp))
        else:
            header = clients[number].header(what, records, timestamp)
            log.append(header)
            clients[number].appended(header)
    restored = LogState.restore(fold(log.headers[:cut]).snapshot())
    for header in log.headers[cut:]:
        restored.apply(entry(header))
    assert restored.snapshot() == log.state.snapshot()
    assert LogState.restore(None).snapshot() == LogState().snapshot()


@settings(max_examples=200)
@given(steps)
def test_4_1_law_checking_ahead_equals_appending_one_by_one_and_changes_nothing(
    script: list[tuple[int, int, str, int]],
) -> None:
    """Batches gathered for one entry are judged as if those before them were in the log."""
    log = Log()
    log.append(batch(1, 0))
    log.append(batch(2, 0))
    before = log.state.snapshot()
    one_by_one = Log()
    one_by_one.append(batch(1, 0))
    one_by_one.append(batch(2, 0))
    clients = {number: Client(number, 1 if number < 3 else 0) for number in (1, 2, 3)}
    ahead: dict[int, Producer] = {}
    end = log.state.end
    largest, largest_base = -1, -1
    for number, records, what, timestamp in script:
        if number == -1:
            header = batch(-1, -1, records, -1, timestamp=timestamp)
        else:
            header = clients[number].header(what, records, timestamp)
        try:
            expected: object = one_by_one.append(header)
        except KafkaError as refusal:
            expected = refusal.code
        try:
            duplicate = log.state.check(header, ahead)
        except KafkaError as refusal:
            assert refusal.code == expected  # noqa: PT017
            continue
        if duplicate is not None:
            assert duplicate == expected
            continue
        assert end == expected
        if header.producer_id != -1:
            ahead[header.producer_id] = log.state.advance(header, end, ahead)
            clients[number].appended(header)
        if header.max_timestamp > largest:
            largest, largest_base = header.max_timestamp, end
        end += records if number == -1 else header.record_count
    assert log.state.snapshot() == before
    if end > log.state.end:
        log.state.appended(end, 0, largest, largest_base, ahead)
    assert log.state.producers == one_by_one.state.producers
    assert log.state.end == one_by_one.state.end
    assert log.state.max_timestamp_base == one_by_one.state.max_timestamp_base


def test_the_batch_with_the_largest_timestamp_is_known_by_its_own_offset() -> None:
    state = LogState()
    state.apply(entry(batch(1, 0, 3, timestamp=5), batch(1, 3, 2, offset=3, timestamp=9)))
    state.apply(entry(batch(1, 5, 1, offset=5, timestamp=9)))
    assert (state.max_timestamp, state.max_timestamp_base) == (9, 3)
    assert (state.end, state.size, state.entries) == (6, 300, 2)


def test_producers_silent_for_long_are_forgotten() -> None:
    log = Log()
    log.append(batch(1, 0))
    log.append(batch(2, 0))
    log.state.forget_producers(now_ms=1_000, kept_ms=100)
    log.append(batch(2, 1))
    log.state.forget_producers(now_ms=1_099, kept_ms=100)
    assert sorted(log.state.producers) == [1, 2]
    log.state.forget_producers(now_ms=1_100, kept_ms=100)
    assert sorted(log.state.producers) == [2]
    assert log.append(batch(1, 42)) == 3  # unknown again: any sequence


def test_a_producer_of_old_records_is_remembered_as_long_as_any() -> None:
    """Timestamps are the client's: a replay's say nothing about when it wrote last."""
    log = Log()
    log.append(batch(1, 0, timestamp=10))
    for snapshot in range(5):
        log.append(batch(2, snapshot, timestamp=5_000_000))
        log.state.forget_producers(now_ms=5_000_000, kept_ms=100)
    assert log.state.check(batch(1, 0, timestamp=10), {}) is not None


def test_silence_goes_on_across_a_snapshot() -> None:
    log = Log()
    log.append(batch(1, 0))
    log.state.forget_producers(now_ms=1_000, kept_ms=100)
    restored = LogState.restore(log.state.snapshot())
    restored.forget_producers(now_ms=1_099, kept_ms=100)
    assert sorted(restored.producers) == [1]
    restored.forget_producers(now_ms=1_100, kept_ms=100)
    assert not restored.producers
