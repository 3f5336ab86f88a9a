"""When a disk has too little room, and what is kept of it. Sizes in bytes."""

from __future__ import annotations

import pytest

from moldau.ops.serve.disk_room import LEAST_SECONDS, LOOK_OFTEN_SECONDS, LOOK_SECONDS, MIB, Marks

GIB = 1 << 30
LARGE, SMALL = Marks.of(1000 * GIB), Marks.of(48 * MIB)


def test_a_small_disk_can_still_be_used() -> None:
    kept = SMALL.min_free + SMALL.runway + SMALL.reserve
    assert kept < 48 * MIB // 3
    assert (LARGE.min_free, LARGE.runway, LARGE.reserve) == (256 * MIB, 64 * MIB, 32 * MIB)


def test_an_operator_sets_the_mark() -> None:
    assert Marks.of(1000 * GIB, 10 * GIB).min_free == 10 * GIB
    assert Marks.of(1000 * GIB, 0).min_free == 0
    # What is ample does not get less with it: that is a question of how quickly a disk fills up.
    assert Marks.of(1000 * GIB, 0).ample == LARGE.ample


@pytest.mark.parametrize("marks", [LARGE, SMALL])
def test_writes_are_refused_below_the_mark_and_taken_again_well_above(marks: Marks) -> None:
    assert not marks.refuses(marks.min_free, refused=False)
    assert marks.refuses(marks.min_free - 1, refused=False)
    assert marks.refuses(marks.min_free + 1, refused=True)
    assert marks.refuses(marks.enough_again - 1, refused=True)
    assert not marks.refuses(marks.enough_again, refused=True)
    assert marks.enough_again > marks.min_free


def test_without_a_mark_nothing_is_refused() -> None:
    assert not Marks.of(48 * MIB, 0).refuses(0, refused=True)


@pytest.mark.parametrize("free", [0, SMALL.min_free, 20 * MIB, 48 * MIB])
def test_on_a_disk_with_little_room_producers_stay_on_the_runway(free: int) -> None:
    """Between two looks, even if a byte of memory is two of the file."""
    ahead = SMALL.runway_for(0, free)
    assert SMALL.runway <= ahead <= max(free, SMALL.runway)
    assert 0 < 2 * SMALL.growth(free, ahead) <= ahead - SMALL.margin


def test_on_a_disk_with_much_room_they_stay_above_the_mark() -> None:
    free = 100 * GIB
    assert 2 * LARGE.growth(free, LARGE.runway) == free - LARGE.min_free


def test_the_runway_follows_the_rate_but_not_into_the_mark() -> None:
    assert LARGE.runway_for(0, 100 * GIB) == LARGE.runway
    assert LARGE.runway_for(400 * MIB, 100 * GIB) == 400 * MIB
    assert LARGE.runway_for(0, LARGE.min_free + 200 * MIB) == 100 * MIB
    assert LARGE.runway_for(400 * MIB, LARGE.min_free) == LARGE.runway


def test_a_file_that_grows_quickly_is_looked_at_before_its_runway_ends() -> None:
    assert LARGE.look_again_s(0, LARGE.ample) == LOOK_SECONDS
    assert LARGE.look_again_s(0, LARGE.ample - 1) == LOOK_OFTEN_SECONDS
    rate = 50 * MIB
    assert SMALL.look_again_s(rate, 10 * MIB) * rate <= SMALL.runway / 4
    assert SMALL.look_again_s(1e12, 0) == LEAST_SECONDS
