"""Entries as record batches: offsets kept, no delta over 31 bits, no more than is asked for."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.log.native.ids import Numbering
from moldau.broker.log.native.stream_reader import (
    MAX_OFFSET_DELTA,
    Delivery,
    RawEntry,
    numbered,
    to_batches,
)
from moldau.broker.store.stream_ids import Id
from moldau.broker.wire.batch import read_header
from moldau.broker.wire.records import Record, encode_headers, read_records

LIMIT = 1 << 30
YEAR_MS = 365 * 24 * 3_600_000
NOW = 1_794_000_000_000

values = st.binary(max_size=30)
fields = (
    st.tuples(values, values).map(
        lambda pair: [b"key", pair[0], b"value", pair[1], b"timestamp", b"1700000000000"]
    )
    | st.tuples(values, values).map(lambda pair: [b"value", pair[0], b"header.h", pair[1]])
    | values.map(lambda value: [b"name", value])
    | values.map(lambda value: [b"key", value, b"value", b"", b"timestamp", b"soon"])
)
gaps = st.integers(0, 3) | st.integers(0, 3 * 3_600_000) | st.just(7 * YEAR_MS)
streams = st.lists(st.tuples(gaps, st.integers(0, 1200), fields), max_size=25)


def entries_of(drawn: list[tuple[int, int, list[bytes]]]) -> list[RawEntry]:
    entries: list[RawEntry] = []
    at = Id(NOW, 0)
    for gap, sequence, content in drawn:
        at = Id(at.ms + gap, sequence) if gap else Id(at.ms, at.seq + 1 + sequence)
        entries.append((at, content))
    return entries


def delivered(entries: list[RawEntry], limit: int = LIMIT, **options: bool) -> Delivery:
    raw = [(bytes(entry), content) for entry, content in entries]
    at_least_one = options.get("at_least_one", True)
    return to_batches(raw, Numbering(10).start_at(0), None, limit, at_least_one=at_least_one)


def records_of(found: Delivery) -> list[Record]:
    return [record for batch in found.batches for record in read_records(batch, LIMIT)]


@given(streams)
def test_records_keep_their_offsets_and_content(drawn: list[tuple[int, int, list[bytes]]]) -> None:
    entries = entries_of(drawn)

    found = delivered(entries)

    wanted = numbered(entries, Numbering(10).start_at(0), None)
    assert records_of(found) == wanted
    assert found.taken == len(entries)
    assert found.last_offset == (wanted[-1].offset if wanted else -1)


@given(streams)
def test_no_delta_is_too_large_for_a_batch(drawn: list[tuple[int, int, list[bytes]]]) -> None:
    last = -1
    for batch in delivered(entries_of(drawn)).batches:
        header = read_header(batch)
        assert 0 <= header.last_offset_delta <= MAX_OFFSET_DELTA
        assert header.base_offset > last
        last = header.base_offset + header.last_offset_delta


def test_a_topic_that_was_quiet_for_years() -> None:
    entries: list[RawEntry] = [(Id(NOW + n * YEAR_MS, 0), [b"value", b"%d" % n]) for n in range(9)]

    found = delivered(entries)

    assert len(found.batches) == 9
    assert [record.value for record in records_of(found)] == [b"%d" % n for n in range(9)]
    assert [record.timestamp for record in records_of(found)] == [one.ms for one, _ in entries]


def test_half_an_hour_is_one_batch_and_an_hour_is_two() -> None:
    for minutes, batches in ((30, 1), (60, 2)):
        later = Id(NOW + minutes * 60_000, 0)
        found = delivered([(Id(NOW, 0), [b"value", b"a"]), (later, [b"value", b"b"])])
        assert len(found.batches) == batches


@given(streams, st.integers(0, 400), st.booleans())
def test_a_limit_is_kept(
    drawn: list[tuple[int, int, list[bytes]]], limit: int, at_least_one: bool
) -> None:
    entries = entries_of(drawn)

    found = delivered(entries, limit, at_least_one=at_least_one)

    assert found.taken == len(records_of(found))
    assert found.size <= limit or (found.taken == 1 and at_least_one)
    assert not (at_least_one and entries) or found.taken >= 1
    wanted = numbered(entries, Numbering(10).start_at(0), None)
    assert records_of(found) == wanted[: found.taken]


def test_large_ones_are_in_batches_of_their_own() -> None:
    big = b"x" * (1 << 20)
    entries: list[RawEntry] = [(Id(NOW, n), [b"value", big]) for n in range(3)]

    found = delivered(entries)

    assert len(found.batches) == 3
    assert all(record.value == big for record in records_of(found))


def test_a_header_is_a_records_header() -> None:
    found = delivered([(Id(NOW, 0), [b"value", b"v", b"header.h", b"1", b"null-header.n", b""])])

    assert records_of(found)[0].headers == encode_headers([("h", b"1"), ("n", None)])
