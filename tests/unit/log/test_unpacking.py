"""Batches that unpack to much more than they are: bounded, in a thread, and not all at once."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack

import pytest

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.reading.unpacking import Unpacking
from moldau.broker.log.writing.validation import (
    MAX_UNPACKED_AT_ONCE,
    UnpacksLarge,
    admit,
    unpacked_room,
)
from moldau.broker.settings.kafka import BrokerConfig, TopicConfig, topic_config
from moldau.broker.wire.batch import Buffer, read_header
from moldau.broker.wire.codecs import OutputTooLarge
from moldau.broker.wire.records import payload_of
from tests.support.raw.client import make_batch
from tests.support.raw.record_batches import every_codec

NOW = 1_700_000_000_000
MIB = 1 << 20
VERSION = 12


def config(**options: object) -> TopicConfig:
    return topic_config({name: str(value) for name, value in options.items()}, BrokerConfig({}))


def zeros(size: int, codec: int) -> bytearray:
    return make_batch([(b"k", bytes(size), NOW)], codec=codec)


# --- admission ---


@pytest.mark.parametrize("codec", range(1, 5))
def test_what_unpacks_to_too_much_is_too_large_however_large_messages_may_be(codec: int) -> None:
    topic = config(**{"max.message.bytes": 4 * MIB, "moldau.batch.unpacked.max.bytes": 2 * MIB})
    admit(memoryview(zeros(4 * MIB - 100, codec)), topic, VERSION, NOW)
    with pytest.raises(KafkaError, match=r"moldau\.batch\.unpacked\.max\.bytes") as refusal:
        admit(memoryview(zeros(4 * MIB, codec)), topic, VERSION, NOW)
    assert refusal.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_megabyte_of_zeros_is_nothing_special(codec: int) -> None:
    for size in (100_000, MIB, 60 * MIB):
        batch = zeros(size, codec)
        if len(batch) <= config().max_message_bytes:
            admit(memoryview(batch), config(), VERSION, NOW)


@pytest.mark.parametrize("codec", range(1, 5))
def test_the_event_loop_does_not_unpack_what_is_large(codec: int) -> None:
    small, large = zeros(MAX_UNPACKED_AT_ONCE - 100, codec), zeros(MAX_UNPACKED_AT_ONCE, codec)
    admit(memoryview(small), config(), VERSION, NOW, at_once=True)
    with pytest.raises(UnpacksLarge):
        admit(memoryview(large), config(), VERSION, NOW, at_once=True)


def test_a_batch_has_no_more_records_than_a_broker_can_handle() -> None:
    topic = config(**{"moldau.batch.unpacked.max.bytes": MIB, "max.message.bytes": MIB})
    most, record = MIB // 64, (None, None, NOW)
    admit(memoryview(make_batch([record] * most, codec=4)), topic, VERSION, NOW)
    with pytest.raises(KafkaError) as refusal:
        admit(memoryview(make_batch([record] * (most + 1), codec=4)), topic, VERSION, NOW)
    assert refusal.value.code == ErrorCode.MESSAGE_TOO_LARGE


@every_codec
def test_a_native_topic_gets_its_records_unpacked_within_the_same_limit(codec: int) -> None:
    topic = config(**{"moldau.storage": "native", "moldau.batch.unpacked.max.bytes": MIB})
    batch, header = admit(memoryview(zeros(MIB // 2, codec)), topic, VERSION, NOW)
    assert header == read_header(batch)
    assert header.attributes == 0
    if codec:
        with pytest.raises(KafkaError) as refusal:
            admit(memoryview(zeros(2 * MIB, codec)), topic, VERSION, NOW)
        assert refusal.value.code == ErrorCode.MESSAGE_TOO_LARGE


@every_codec
def test_as_much_room_is_taken_as_may_be_needed(codec: int) -> None:
    topic = config(**{"moldau.batch.unpacked.max.bytes": 8 * MIB})
    for size in (0, 10_000, MIB - 1000):
        batch = zeros(size, codec)
        payload = payload_of(batch, read_header(batch), 8 * MIB)
        assert len(payload) <= unpacked_room(memoryview(batch), topic) <= 8 * MIB


# --- the room of a worker ---


async def test_what_does_not_fit_waits_for_its_turn() -> None:
    unpacking = Unpacking(100)
    order: list[str] = []

    async def take(name: str, size: int, until: asyncio.Event) -> None:
        async with unpacking.room(size):
            order.append(name)
            await until.wait()

    ends = [asyncio.Event() for _ in range(4)]
    async with asyncio.TaskGroup() as tasks:
        for name, size, until in zip("abcd", (60, 40, 50, 10), ends, strict=True):
            tasks.create_task(take(name, size, until))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == ["a", "b"], "the last would fit beside them soon, but came last"
        ends[1].set()
        await asyncio.sleep(0.01)
        assert order == ["a", "b"]
        ends[0].set()
        await asyncio.sleep(0.01)
        assert order == ["a", "b", "c", "d"]
        for end in ends:
            end.set()


async def test_more_than_there_is_runs_alone() -> None:
    unpacking = Unpacking(100)
    async with unpacking.room(1000):
        waiting = asyncio.create_task(_pass_through(unpacking, 1))
        await asyncio.sleep(0.01)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 10)


async def test_one_that_gives_up_waiting_takes_nothing() -> None:
    unpacking = Unpacking(100)
    async with unpacking.room(100):
        gives_up = asyncio.create_task(_pass_through(unpacking, 100))
        waits = asyncio.create_task(_pass_through(unpacking, 100))
        await asyncio.sleep(0)
        gives_up.cancel()
    await asyncio.wait_for(waits, 10)
    turned = AsyncExitStack()
    await turned.enter_async_context(unpacking.room(100))
    late = asyncio.create_task(_pass_through(unpacking, 100))
    await asyncio.sleep(0)
    await turned.aclose()  # its turn has come, and it is cancelled before it runs
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    await asyncio.wait_for(_pass_through(unpacking, 100), 10)


async def _pass_through(unpacking: Unpacking, size: int) -> None:
    async with unpacking.room(size):
        pass


# --- batches of a log ---


def _where(batch: Buffer, limit: int) -> tuple[int, int]:
    payload = payload_of(batch, read_header(batch), limit)
    return len(payload), threading.get_ident()


@pytest.mark.parametrize("codec", range(1, 5))
async def test_stored_batches_are_unpacked_in_a_thread_if_they_are_large(codec: int) -> None:
    unpacking = Unpacking()
    here = threading.get_ident()
    size, where = await unpacking.apply(_where, zeros(1000, codec), 8 * MIB)
    assert (size > 1000, where) == (True, here)
    size, where = await unpacking.apply(_where, zeros(4 * MIB, codec), 8 * MIB)
    assert size > 4 * MIB
    assert where != here
    async with unpacking.payload(zeros(4 * MIB, codec), 8 * MIB) as payload:
        assert len(payload) > 4 * MIB
    for limit in (MIB, 3 * MIB):
        with pytest.raises(OutputTooLarge):
            await unpacking.apply(_where, zeros(4 * MIB, codec), limit)
        with pytest.raises(OutputTooLarge):
            async with unpacking.payload(zeros(4 * MIB, codec), limit):
                pass
    await asyncio.wait_for(_pass_through(unpacking, 1 << 40), 10)  # nothing is held
