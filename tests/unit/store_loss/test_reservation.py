"""Offsets are reserved ahead of need, and never used before that is confirmed."""

from __future__ import annotations

import asyncio

import pytest

from moldau.broker.errors import StoreUnavailable
from moldau.broker.store_loss.log_integrity import Reservation


class Reserves:
    """Notes what is reserved; a gate holds the confirmation back."""

    least_reserved = 2_000  # more than a few appends in a moment make a rate of

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.confirmed = asyncio.Event()
        self.outcome: bool | Exception = True

    async def reserve(self, key: bytes, ceiling: int) -> bool:
        self.asked.append(ceiling)
        await self.confirmed.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


async def test_nothing_is_usable_before_it_is_confirmed() -> None:
    store = Reserves()
    reservation = Reservation(store, b"log")
    extending = reservation.extend(10)
    await asyncio.sleep(0)
    assert (store.asked, reservation.ceiling) == ([2_010], 0)
    store.confirmed.set()
    assert await extending
    assert reservation.ceiling == 2_010
    assert 10 < reservation.extend_at < 2_010


async def test_who_asks_meanwhile_shares_it() -> None:
    store = Reserves()
    reservation = Reservation(store, b"log")
    first, second = reservation.extend(10), reservation.extend(20)
    assert first is second
    store.confirmed.set()
    assert await first
    assert store.asked == [2_010]


async def test_a_fault_reserves_nothing_and_is_tried_again() -> None:
    store = Reserves()
    store.confirmed.set()
    reservation = Reservation(store, b"log")
    store.outcome = StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable):
        await reservation.extend(10)
    assert reservation.ceiling == 0
    store.outcome = True
    assert await reservation.extend(10)
    assert reservation.ceiling == 2_010


async def test_under_another_store_id_nothing_is_reserved() -> None:
    store = Reserves()
    store.confirmed.set()
    store.outcome = False
    reservation = Reservation(store, b"log")
    assert not await reservation.extend(10)
    assert reservation.ceiling == 0


async def test_a_log_that_is_loaded_again_meanwhile_uses_what_it_loaded() -> None:
    store = Reserves()
    reservation = Reservation(store, b"log")
    extending = reservation.extend(10)
    await asyncio.sleep(0)
    reservation.loaded(5, 5)  # under another store id
    store.confirmed.set()
    assert not await extending
    assert reservation.ceiling == 5


async def test_the_faster_a_log_grows_the_more_is_reserved() -> None:
    store = Reserves()
    store.confirmed.set()
    reservation = Reservation(store, b"log")
    await reservation.extend(10)
    await asyncio.sleep(0.02)
    await reservation.extend(1_000_010)
    assert reservation.ceiling > 1_000_010 + 100_000
