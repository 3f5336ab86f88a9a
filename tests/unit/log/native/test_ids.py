"""Offsets of stream ids: by the formula where they fit, found again where they do not."""

from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.broker.log.native.ids import Mark, Numbering, parse_mark
from moldau.broker.store.stream_ids import MAX_SEQUENCE, Id, parse

MS = 1_234_567_890_123
ids = st.builds(Id, st.integers(0, 1 << 43), st.integers(0, MAX_SEQUENCE))

# Streams with bursts: few milliseconds close together, sequences around what two bits hold.
bursts = st.lists(
    st.builds(Id, st.integers(100, 140), st.integers(0, 40) | st.integers(0, MAX_SEQUENCE)),
    unique=True,
    min_size=1,
    max_size=80,
).map(sorted)
pages = st.lists(st.integers(1, 12), min_size=1, max_size=6)


class Reader:
    """Reads a stream as a worker does: pages, marks noted before anything is shown."""

    def __init__(self, stream: list[Id], numbering: Numbering | None = None) -> None:
        self.stream = stream
        self.numbering = numbering or Numbering(2)

    def page(self, offset: int, count: int) -> list[tuple[int, Id]]:
        run = self.numbering.start_at(offset)
        entries = [one for one in self.stream if one >= run.first][:count]
        numbered = [(run.offset_of(one), one) for one in entries]
        self.numbering.note(run.marks)
        return numbered

    def read(self, offset: int, counts: list[int]) -> list[tuple[int, Id]]:
        """Everything from an offset on, in pages of these sizes over and over."""
        found: list[tuple[int, Id]] = []
        turn = 0
        while page := self.page(offset, counts[turn % len(counts)]):
            found += page
            offset = page[-1][0] + 1
            turn += 1
        return found


def test_an_offset_is_the_milliseconds_and_the_sequence() -> None:
    numbering = Numbering(10)

    assert numbering.natural(Id(MS, 5)) == 1264197519485957
    assert numbering.id_at(1264197519485957) == Id(MS, 5)
    assert numbering.end_after(Id(MS, 5)) == 1264197519485958
    assert numbering.end_after(Id(0, 0)) == 0


@given(st.integers(1, 20), st.data())
def test_ids_that_fit_and_offsets_are_the_same(bits: int, data: st.DataObject) -> None:
    numbering = Numbering(bits)
    entry = Id(data.draw(st.integers(0, 1 << 42)), data.draw(st.integers(0, (1 << bits) - 1)))

    assert numbering.id_at(numbering.natural(entry)) == entry
    assert numbering.natural(entry) < 1 << 63


@given(ids, ids)
def test_before_and_after(one: Id, other: Id) -> None:
    assert one.after > one
    assert one.after.before == one
    assert one == Id(0, 0) or one.before < one
    assert not one < other or one <= other.before
    assert parse(bytes(one)) == one


def test_nothing_is_before_the_first_id() -> None:
    assert Id(0, 0).before == Id(0, 0)
    assert Id(7, 0).before == Id(6, MAX_SEQUENCE)


@given(st.builds(Mark, st.integers(0, (1 << 63) - 1), ids, st.booleans()))
def test_marks_are_read_as_they_were_written(mark: Mark) -> None:
    assert parse_mark(bytes(mark)) == mark


@given(st.lists(st.builds(Id, st.integers(100, 140), st.integers(0, 3)), unique=True).map(sorted))
def test_a_stream_whose_ids_fit_gets_no_marks(stream: list[Id]) -> None:
    reader = Reader(stream)

    read = reader.read(0, [7])

    assert read == [(one.ms * 4 + one.seq, one) for one in stream]
    assert not reader.numbering.noted


@given(bursts, pages)
def test_every_entry_is_delivered_once_at_growing_offsets(
    stream: list[Id], counts: list[int]
) -> None:
    read = Reader(stream).read(0, counts)

    assert [entry for _, entry in read] == stream
    offsets = [offset for offset, _ in read]
    assert offsets == sorted(set(offsets))
    assert all(offset >= entry.ms * 4 for offset, entry in read)
    assert offsets[-1] < 1 << 63


@given(bursts, pages, pages)
def test_any_offset_that_was_delivered_is_found_again(
    stream: list[Id], counts: list[int], others: list[int]
) -> None:
    first = Reader(stream)
    read = first.read(0, counts)
    second = Reader(stream, Numbering(2))
    second.numbering.note(parse_mark(bytes(mark)) for mark in first.numbering.noted)

    for at, (offset, _) in enumerate(read):
        assert second.read(offset, others) == read[at:]
        assert second.page(offset + 1, 1) == read[at + 1 : at + 2]


@given(bursts, pages, st.data())
def test_what_is_removed_moves_nothing_else(
    stream: list[Id], counts: list[int], data: st.DataObject
) -> None:
    reader = Reader(stream)
    read = reader.read(0, counts)
    kept = [one for one in read if data.draw(st.booleans())]
    reader.stream = [entry for _, entry in kept]

    for offset, _ in read:
        assert reader.read(offset, counts) == [one for one in kept if one[0] >= offset]


@given(bursts, bursts, pages)
def test_a_reader_goes_on_where_it_was_when_more_comes(
    stream: list[Id], more: list[Id], counts: list[int]
) -> None:
    reader = Reader(stream)
    before = reader.read(0, counts)
    reader.stream = stream + [one for one in more if one > stream[-1]]

    after = reader.read(before[-1][0] + 1, counts)

    assert [entry for _, entry in after] == reader.stream[len(stream) :]


def test_an_entry_between_two_that_left_it_no_room_is_not_left_out() -> None:
    late = Reader([Id(100, 255), Id(101, 0), Id(123, 164)])
    assert late.read(405, [1]) == [(656, Id(123, 164))]  # right behind the first one's offset

    early = Reader(late.stream, late.numbering).read(0, [1])

    assert [entry for _, entry in early] == late.stream
    assert [offset for offset, _ in early] == [655, 656, 657]


def test_who_comes_later_moves_what_is_behind_it_up_for_everybody() -> None:
    late = Reader([Id(134, 4), Id(135, 0), Id(135, 4)])
    assert late.read(541, [1]) == [(544, Id(135, 4))]

    early = Reader(late.stream, late.numbering).read(0, [3])

    assert early == [(540, Id(134, 4)), (541, Id(135, 0)), (545, Id(135, 4))]


@settings(max_examples=300)
@given(bursts, pages, pages, st.data())
def test_readers_who_begin_anywhere_leave_nothing_out(
    stream: list[Id], counts: list[int], others: list[int], data: st.DataObject
) -> None:
    """Offsets by time, and the end, are where a reader may begin that has read nothing before."""
    late = Reader(stream)
    offset = data.draw(st.integers(100 * 4, 145 * 4))
    seen = late.read(offset, others)
    early = Reader(stream, data.draw(st.sampled_from([late.numbering, Numbering(2)])))
    read = early.read(0, counts)
    assert [entry for _, entry in read] == stream
    both = Numbering(2)
    both.note([*early.numbering.noted, *late.numbering.noted])

    for shown in (read, seen):
        for at, (offset, _) in enumerate(shown):
            found = [entry for _, entry in Reader(stream, both).read(offset, counts)]
            assert {entry for _, entry in shown[at:]} <= set(found)


@given(bursts)
def test_what_is_said_of_an_entry_leads_to_it(stream: list[Id]) -> None:
    """A group that only Redis knows shows its oldest pending entry, or what is behind one."""
    for noted in (False, True):
        reader = Reader(stream)
        if noted:
            reader.read(0, [5])
        for at, entry in enumerate(stream):
            numbering = reader.numbering
            found = {
                one
                for _, one in Reader(stream, _copy(numbering)).read(
                    numbering.offset_from(entry), [50]
                )
            }
            assert set(stream[at:]) <= found
            found = {
                one
                for _, one in Reader(stream, _copy(numbering)).read(
                    numbering.offset_behind(entry), [50]
                )
            }
            assert set(stream[at + 1 :]) <= found


def _copy(numbering: Numbering) -> Numbering:
    copy = Numbering(numbering.bits)
    copy.note(numbering.noted)
    return copy
