"""Producer ids: each one once, taken ahead of need."""

from __future__ import annotations

import asyncio

import pytest

from moldau.broker.coordinator.transactions.producer_ids import BLOCK, LOW, ProducerIds
from moldau.broker.errors import StoreDown
from moldau.broker.txn.record import NO_PRODUCER_ID


class Blocks:
    def __init__(self) -> None:
        self.taken = 0
        self.is_down = False

    async def take(self, count: int) -> int:
        await asyncio.sleep(0)
        if self.is_down:
            raise StoreDown("down")
        self.taken += 1
        return 10_000 * self.taken


async def test_none_is_given_twice() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks.take)
    found = await asyncio.gather(*(ids.next() for _ in range(3 * BLOCK)))
    assert len(set(found)) == 3 * BLOCK
    assert NO_PRODUCER_ID not in found


async def test_the_next_block_is_there_before_it_is_needed() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks.take)
    assert ids.take() == NO_PRODUCER_ID  # and asks for some
    for _ in range(5):
        await asyncio.sleep(0)
    assert blocks.taken == 1
    assert [ids.take() for _ in range(BLOCK)] == list(range(10_000, 10_000 + BLOCK))
    assert ids.take() == NO_PRODUCER_ID  # in one turn: it could not have come
    await ids.ensure()
    assert blocks.taken == 2
    for number in range(BLOCK - LOW):
        assert ids.take() == 20_000 + number
    await asyncio.sleep(0.01)
    assert blocks.taken == 2
    ids.take()
    await asyncio.sleep(0.01)
    assert blocks.taken == 3


async def test_a_store_that_is_down() -> None:
    blocks = Blocks()
    blocks.is_down = True
    ids = ProducerIds(blocks.take)
    with pytest.raises(StoreDown):
        await ids.next()
    blocks.is_down = False
    assert await ids.next() == 10_000
