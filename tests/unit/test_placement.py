"""Slots: golden values computed by hand, and the laws of a partition of groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.placement import SLOTS, java_string_hash, owner_of, slot_of, slots_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("ab", 97 * 31 + 98),
        ("abc", 96354),
        ("hello", 99162322),
        # Beyond 32 bits it wraps, as int arithmetic does in Java.
        ("polygenelubricants", -(1 << 31)),
        ("ž", 0x17E),
        # Outside the basic plane: two code units, D83D and DE00.
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
    ],
)
def test_java_string_hash(text: str, value: int) -> None:
    assert java_string_hash(text) == value


@pytest.mark.parametrize(
    ("name", "slot"),
    [
        ("abc", 96354 % 50),
        ("hello", 99162322 % 50),
        # abs of the smallest integer is 0 in Kafka's Utils.abs.
        ("polygenelubricants", 0),
        ("\U0001f600", (0xD83D * 31 + 0xDE00) % 50),
    ],
)
def test_slots_of_known_groups(name: str, slot: int) -> None:
    assert slot_of(name) == slot


@given(st.text(), st.integers(1, 60))
def test_every_name_has_one_owner_who_owns_its_slot(name: str, workers: int) -> None:
    owners = [worker for worker in range(workers) if slot_of(name) in slots_of(worker, workers)]
    assert owners == [owner_of(name, workers)]


@given(st.integers(1, 60))
def test_every_slot_has_exactly_one_owner(workers: int) -> None:
    owned = [slot for worker in range(workers) for slot in slots_of(worker, workers)]
    assert sorted(owned) == list(range(SLOTS))


@given(st.text())
def test_hashes_are_signed_32_bit_integers(text: str) -> None:
    assert -(1 << 31) <= java_string_hash(text) < 1 << 31
