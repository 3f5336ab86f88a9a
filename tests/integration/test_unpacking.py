"""Batches that are bombs, on a topic for large messages: what they cost the worker.

Kept apart from the checks of single batches: here the memory of a real worker is watched.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.batch import CRC_AT, HEADER_SIZE, LENGTH_OVERHEAD, checksum
from moldau.broker.wire.codecs import ZSTD
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.brokers.running import Broker, running_broker
from tests.support.raw.calls import create_topic
from tests.support.raw.client import NAMED_PRODUCE, RawClient, make_batch, records_in

_names = (f"unpacking-{number}" for number in itertools.count())
MIB = 1 << 20
LARGE_MESSAGES = {"max.message.bytes": 100_000_000}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=1) as started:
        yield started


class Peak:
    """How much memory a process takes at most, beyond what it had before."""

    def __init__(self, pid: int) -> None:
        self._process = Path(f"/proc/{pid}")
        (self._process / "clear_refs").write_text("5")  # the peak begins again from here
        self._before = self._bytes()

    def _bytes(self) -> int:
        for line in (self._process / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmHWM")

    @property
    def growth(self) -> int:
        return self._bytes() - self._before


def zstd_bomb(size: int) -> bytearray:
    """A batch with a payload of zeros: four bytes for every 128 KiB of them."""
    block, count = 128 * 1024, size // (128 * 1024)
    blocks = [(block << 3 | 1 << 1).to_bytes(3, "little") + b"\0"] * (count - 1)
    blocks.append((block << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0")
    payload = b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(blocks)
    batch = make_batch([(b"k", b"v", 1)])[:HEADER_SIZE] + payload
    struct.pack_into(">i", batch, 8, len(batch) - LENGTH_OVERHEAD)
    struct.pack_into(">h", batch, 21, ZSTD)
    struct.pack_into(">I", batch, CRC_AT, checksum(batch))
    return batch


def _request(topic: str, batch: bytearray) -> ProduceRequest:
    data = TopicProduceData(topic, partition_data=[PartitionProduceData(0, memoryview(batch))])
    return ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[data])


def test_a_bomb_costs_no_more_than_the_limit(broker: Broker) -> None:
    (worker,) = broker.processes("worker")
    with RawClient(worker["port"], timeout=90) as client:
        topic = next(_names)
        create_topic(client, topic, LARGE_MESSAGES)
        peak = Peak(worker["pid"])
        answer = client.produce(topic, zstd_bomb(1 << 30))
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert "moldau.batch.unpacked.max.bytes" in (answer.error_message or "")
        assert peak.growth < 150 * MIB


def test_many_at_once_take_turns(broker: Broker) -> None:
    """Each is within the limit, so that each is unpacked whole; and honest ones among them."""
    (worker,) = broker.processes("worker")
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(worker["port"], timeout=90)) for _ in range(16)]
        topic = next(_names)
        create_topic(clients[0], topic, LARGE_MESSAGES)
        peak = Peak(worker["pid"])
        bomb = zstd_bomb(90 * MIB)
        for client in clients:
            client.send(_request(topic, bomb), NAMED_PRODUCE)
        with RawClient(worker["port"], timeout=90) as other:
            assert other.produce(topic, make_batch([(b"k", b"v", 1)])).error_code == 0
        for client in clients:
            (answer,) = client.receive().responses[0].partition_responses
            assert answer.error_code == ErrorCode.INVALID_RECORD
        assert peak.growth < 450 * MIB


@pytest.mark.parametrize("storage", ["log", "native"])
@pytest.mark.parametrize("codec", range(1, 5))
def test_what_compresses_well_is_welcome(broker: Broker, storage: str, codec: int) -> None:
    (worker,) = broker.processes("worker")
    with RawClient(worker["port"], timeout=90) as client:
        topic = next(_names)
        create_topic(client, topic, {"moldau.storage": storage})
        value = bytes(3 * MIB)
        answer = client.produce(topic, make_batch([(b"k", value, 1), (b"k", b"v", 2)], codec=codec))
        assert (answer.error_code, answer.error_message) == (0, None)
        found = records_in(client.fetch(topic, 0, max_bytes=8 * MIB))
        assert [record.value for record in found] == [value, b"v"]


def test_the_order_of_a_connection_holds(broker: Broker) -> None:
    """What turns out to be large is admitted in a thread; what is sent behind it waits."""
    (worker,) = broker.processes("worker")
    with RawClient(worker["port"], timeout=90) as client:
        topic = next(_names)
        create_topic(client, topic)
        large = [(b"k", os.urandom(10) + bytes(2 * MIB), 1)]
        for number in range(10):
            records = [*(large if number % 2 == 0 else []), (b"k", b"%d" % number, 1)]
            client.send(_request(topic, make_batch(records, codec=ZSTD)), NAMED_PRODUCE)
        offsets = [
            client.receive().responses[0].partition_responses[0].base_offset for _ in range(10)
        ]
        assert offsets == [0, 2, 3, 5, 6, 8, 9, 11, 12, 14]
