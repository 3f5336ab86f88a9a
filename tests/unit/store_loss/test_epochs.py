"""Leader epochs and gaps against a model: a log written offset by offset."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.store_loss.epochs import EPOCH_ZERO, UNDEFINED, Epoch, Epochs


class Written(NamedTuple):
    """A log's offsets, each with the epoch it was written in, and where each epoch ended."""

    epochs: Epochs
    records: dict[int, int]
    ends: dict[int, int]
    end: int


@st.composite
def logs(draw: st.DrawFn) -> Written:
    """Appends and bumps in any order; a bump skips no offset, or some."""
    epochs, records, ends, end = EPOCH_ZERO, {}, {}, 0
    for appended, skipped in draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)))):
        records.update(dict.fromkeys(range(end, end + appended), epochs.current))
        end += appended
        ends[epochs.current] = end
        epochs = epochs.followed_by(end + skipped, end)
        end += skipped
    appended = draw(st.integers(0, 5))
    records.update(dict.fromkeys(range(end, end + appended), epochs.current))
    return Written(epochs, records, ends | {epochs.current: end + appended}, end + appended)


@given(logs())
def test_what_is_saved_is_read_again(log: Written) -> None:
    assert Epochs.parse(log.epochs.text or None) == log.epochs


@given(logs())
def test_a_record_is_no_gap_and_has_its_epoch(log: Written) -> None:
    for offset, number in log.records.items():
        assert log.epochs.skip_gap(offset) == offset
        assert log.epochs.number_at(offset) == number


@given(logs())
def test_an_offset_in_a_gap_leads_to_the_next_record_or_the_end(log: Written) -> None:
    for offset in range(log.end):
        following = next((at for at in range(offset, log.end) if at in log.records), log.end)
        assert log.epochs.skip_gap(offset) == following
        if following in log.records:
            assert log.epochs.number_at(offset) == log.records[following]
        for after in range(offset, log.end + 1):
            existing = sum(at in log.records for at in range(offset, after))
            assert log.epochs.count(offset, after) == existing


@given(logs())
def test_gaps_are_what_was_never_written(log: Written) -> None:
    missing = {offset for first, after in log.epochs.gaps for offset in range(first, after)}
    assert missing == set(range(log.end)) - log.records.keys()
    assert all(first < after for first, after in log.epochs.gaps)
    assert all(a[1] < b[0] for a, b in zip(log.epochs.gaps, log.epochs.gaps[1:], strict=False))


@given(logs())
def test_an_epoch_ends_where_its_records_do(log: Written) -> None:
    for number, end in log.ends.items():
        assert log.epochs.end_of(number, log.end) == (number, end)
    assert log.epochs.end_of(log.epochs.current + 1, log.end) == UNDEFINED
    assert log.epochs.end_of(-1, log.end) == UNDEFINED


@given(logs(), st.integers(0, 40), st.integers(0, 5))
def test_what_the_log_start_has_passed_is_dropped(log: Written, start: int, skipped: int) -> None:
    """Epochs do not accumulate forever, and nothing changes for the offsets that are left."""
    log_start = min(start, log.end)
    full = log.epochs.followed_by(log.end + skipped, log.end)
    kept = log.epochs.followed_by(log.end + skipped, log.end, log_start=log_start)
    assert kept.all == full.all[len(full.all) - len(kept.all) :]
    assert kept.current == full.current
    assert sum(epoch.start <= log_start for epoch in kept.all[:-1]) <= 1
    for offset in range(log_start, log.end + skipped + 1):
        assert kept.skip_gap(offset) == full.skip_gap(offset)
        assert kept.number_at(offset) == full.number_at(offset)


def test_a_log_that_lost_nothing() -> None:
    assert Epochs.parse(None) is EPOCH_ZERO
    assert (EPOCH_ZERO.current, EPOCH_ZERO.start, EPOCH_ZERO.gaps) == (0, 0, ())
    assert EPOCH_ZERO.skip_gap(7) == 7
    assert EPOCH_ZERO.number_at(7) == 0
    assert EPOCH_ZERO.end_of(0, 150) == (0, 150)


def test_two_losses_with_nothing_in_between_are_one_gap() -> None:
    epochs = Epochs.parse(b"1:1000:100 2:2000:1000")
    assert epochs.all == (Epoch(1, 1000, 100), Epoch(2, 2000, 1000))
    assert epochs.gaps == ((100, 2000),)
    assert epochs.skip_gap(150) == 2000
    assert epochs.end_of(0, 2005) == (0, 100)
    assert epochs.end_of(1, 2005) == (1, 1000)


def test_an_epoch_older_than_all_known_ended_before_them() -> None:
    assert Epochs.parse(b"5:900:400").end_of(3, 950) == (3, 400)


def test_an_epoch_between_two_known_ones_is_answered_with_the_lower() -> None:
    assert Epochs.parse(b"1:100:90 4:900:400").end_of(3, 950) == (1, 400)


@pytest.mark.parametrize(
    "text", [b"x", b"1:2", b"1:2:3:4", b"0:10:5", b"1:10:11", b"2:10:5 1:20:15", b"1:20:5 2:10:9"]
)
def test_what_is_no_succession_of_epochs_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Epochs.parse(text)
