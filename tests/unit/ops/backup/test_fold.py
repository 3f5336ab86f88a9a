"""What a log of a backup holds, and what is wrong with it."""

from __future__ import annotations

from moldau.broker.store.streams import NOTHING_CLEANED, CleanPart, Entry
from moldau.broker.store_loss.epochs import EPOCH_ZERO, Epochs
from moldau.broker.wire.batch import set_base_offset
from moldau.ops.backup.fold import Folded, LogFold
from tests.support.raw.client import make_batch


def batch(base: int, count: int = 1, epoch: int = 0) -> bytes:
    made = make_batch([(None, b"value", 1_000)] * count)
    set_base_offset(made, base, epoch)
    return bytes(made)


def entry(*batches: tuple[int, int]) -> Entry:
    return Entry(batches[0][0], b"".join(batch(*one) for one in batches), b"")


def folded(
    *live: Entry,
    start: int = 0,
    epochs: Epochs = EPOCH_ZERO,
    clean: CleanPart = NOTHING_CLEANED,
    cleaned: tuple[Entry, ...] = (),
) -> Folded:
    fold = LogFold(start, epochs, clean)
    fold.cleaned(cleaned)
    fold.live(live)
    return fold.result()


def test_records_batches_and_the_end() -> None:
    found = folded(entry((0, 3), (3, 1)), entry((4, 6)))
    assert (found.entries, found.batches, found.records, found.end) == (2, 3, 10, 10)
    assert found.problems == []
    assert folded().problems == []


def test_records_below_the_log_start_do_not_count() -> None:
    found = folded(entry((0, 3), (3, 4)), entry((7, 1)), start=5)
    assert (found.start, found.end, found.records, found.batches) == (5, 8, 3, 2)
    assert folded(start=12).end == 12


def test_a_gap_of_a_leader_epoch_is_no_hole() -> None:
    epochs = Epochs.parse(b"1:100:3")
    found = folded(entry((0, 3)), entry((100, 2)), epochs=epochs)
    assert (found.problems, found.end, found.epoch) == ([], 102, 1)
    assert folded(entry((0, 3)), epochs=epochs).end == 100


def test_a_hole() -> None:
    assert folded(entry((0, 3)), entry((5, 1))).problems == ["offsets 3 to 4 are missing"]


def test_a_batch_that_is_not_where_it_says() -> None:
    found = folded(Entry(0, batch(0, 2) + batch(1), b""))
    assert found.problems == ["a batch at offset 2 says that it is at 1"]


def test_batches_of_a_mirror_keep_their_offsets() -> None:
    """Entries are dense; in front of a batch offsets may be missing, as they were at the source."""
    found = folded(Entry(0, batch(7, 2), b""), Entry(9, batch(12) + batch(20), b""))
    assert (found.problems, found.end, found.records) == ([], 21, 4)


def test_a_changed_byte() -> None:
    damaged = bytearray(batch(0, 2))
    damaged[-1] ^= 1
    found = folded(Entry(0, bytes(damaged), b""))
    assert found.problems == ["the batch at offset 0 has another checksum"]


def test_what_is_no_batch() -> None:
    found = folded(Entry(0, batch(0)[:-1], b""), entry((1, 1)))
    assert len(found.problems) == 1
    assert "the entry at offset 0 cannot be read" in found.problems[0]


def test_a_compacted_log() -> None:
    clean = CleanPart(generation=2, end=10, entries=2)
    parts = (entry((0, 1), (4, 1)), entry((8, 1)))
    found = folded(entry((10, 2)), clean=clean, cleaned=parts)
    assert (found.problems, found.records, found.end) == ([], 5, 12)
    # What is left of the live stream below it was replaced.
    assert folded(entry((9, 1)), entry((10, 2)), clean=clean, cleaned=parts).records == 5
    found = folded(clean=clean, cleaned=parts[:1])
    assert found.problems == ["the cleaned part has 1 entries, not 2"]
    assert found.end == 10
    found = folded(clean=clean, cleaned=tuple(reversed(parts)))
    assert found.problems == ["offset 0 is not in order"]


def test_the_first_problems_say_enough() -> None:
    assert len(folded(*(entry((at, 1)) for at in range(0, 100, 2))).problems) == 5
