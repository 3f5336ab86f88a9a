"""The fetch benchmark: the tail and the start of a log, again and again."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import redis

from broker.store import keys, resp
from broker.wire.frame import request_frame
from broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from loadtest.bench.harness.client import FETCH, Client, RequestFailed
from loadtest.bench.harness.replay import BulkReplayer, Replayer, Totals, run_load
from loadtest.bench.harness.target import Target
from loadtest.bench.produce import VERSION as PRODUCE_VERSION
from loadtest.bench.produce import make_batch, store_address

VERSION = 12
RESPONSE_BYTES = 1 << 20
TAIL, COLD, ECHO, RAW = "tail fetch", "cold fetch", "bare uvloop", "raw XRANGE"

Load = Callable[[], Coroutine[Any, Any, Totals]]


class FetchBench:
    """One batch size. A log is written first, then read."""

    baselines = {TAIL: ECHO, COLD: RAW}  # noqa: RUF012
    roles = ("broker", "worker", "store", "client")

    def __init__(self, target: Target, arguments: argparse.Namespace, size: int) -> None:
        self._target = target
        self._arguments = arguments
        self.size = size
        self._topic = f"bench-{secrets.token_hex(4)}"

    def __enter__(self) -> FetchBench:
        batch = bytes(make_batch(self.size))
        with Client(self._target.host, self._target.port) as client:
            client.create_topic(self._topic, 1)
            self._address = client.leaders(self._topic)[0]
        data = TopicProduceData(self._topic, partition_data=[PartitionProduceData(0, batch)])
        request = ProduceRequest(None, -1, 30_000, [data])
        with Client(*self._address) as client:
            for _ in range(self._arguments.log_bytes // len(batch)):
                answer = client.call(request, PRODUCE_VERSION)
                if answer.responses[0].partition_responses[0].error_code:
                    raise RequestFailed("the log could not be written")
            self._end = client.end_offsets(self._topic)[0]
            entries = max(RESPONSE_BYTES // len(batch), 1)
            per_batch = self._end // (self._arguments.log_bytes // len(batch))
            self._tail_at = self._end - entries * per_batch
            self._entries = entries
            self._reply_size = self._check(client, self._tail_at)
            self._check(client, 0)
        return self

    def __exit__(self, *exc: object) -> None:
        with Client(self._target.host, self._target.port) as client:
            client.delete_topic(self._topic)

    def _request(self, offset: int) -> FetchRequest:
        partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=RESPONSE_BYTES)
        topic = FetchTopic(self._topic, partitions=[partition])
        return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, topics=[topic])

    def _check(self, client: Client, offset: int) -> int:
        answer = client.call(self._request(offset), VERSION).responses[0].partitions[0]
        size = len(answer.records)
        if answer.error_code or size < RESPONSE_BYTES // 2:
            raise RequestFailed(f"fetch at {offset}: error {answer.error_code}, {size} bytes")
        return size

    def bytes_of(self, totals: Totals) -> int:
        return totals.received

    def loads(self) -> Iterator[tuple[str, Load]]:
        yield ECHO, self._echo
        yield TAIL, lambda: self._fetch(self._tail_at)
        if self._target.store_url is not None:
            yield RAW, self._raw
        yield COLD, lambda: self._fetch(0)

    async def _fetch(self, offset: int) -> Totals:
        frame = request_frame(FETCH, VERSION, 1, "bench", self._request(offset))
        arguments = self._arguments
        make = _replayer([frame], arguments.in_flight)
        return await run_load([(make, self._address)] * arguments.connections, arguments.seconds)

    async def _raw(self) -> Totals:
        """XRANGE of as many entries, from the log itself."""
        assert self._target.store_url is not None
        command = resp.command(
            "XRANGE", keys.stream(self._topic, 0, 0), "-", "+", "COUNT", self._entries
        )
        reply_size = _reply_size(self._target.store_url, self._topic, self._entries)
        address = store_address(self._target.store_url)
        arguments = self._arguments

        def make() -> Replayer:
            client = BulkReplayer([command], arguments.in_flight)
            client.reply_size = reply_size
            return client

        return await run_load([(make, address)] * arguments.connections, arguments.seconds)

    async def _echo(self) -> Totals:
        """A server in a process of its own that does nothing but send as many bytes."""
        arguments = self._arguments
        server = await asyncio.create_subprocess_exec(
            *_echo_command(self._reply_size), stdout=asyncio.subprocess.PIPE
        )
        try:
            assert server.stdout is not None
            port = int(await server.stdout.readline())
            frame = request_frame(FETCH, VERSION, 1, "bench", self._request(0))
            make = _replayer([frame], arguments.in_flight)
            return await run_load(
                [(make, ("127.0.0.1", port))] * arguments.connections, arguments.seconds
            )
        finally:
            server.terminate()
            await server.wait()


def _replayer(frames: list[bytes], in_flight: int) -> Callable[[], Replayer]:
    return lambda: Replayer(frames, in_flight)


def _echo_command(size: int) -> list[str]:
    return [sys.executable, "-m", "loadtest.bench.harness.echo_server", str(size)]


def _reply_size(url: str, topic: str, entries: int) -> int:
    """How many bytes the store's answer takes on the wire."""
    store = redis.Redis.from_url(url)
    reply = cast("list[tuple[bytes, dict[bytes, bytes]]]", store.xrange(
        keys.stream(topic, 0, 0), count=entries
    ))  # fmt: skip
    store.close()
    total = len(b"*%d\r\n" % len(reply))
    for entry_id, fields in reply:
        words = [word for pair in fields.items() for word in pair]
        total += len(b"*2\r\n") + len(resp.bulk(entry_id)) + len(b"*%d\r\n" % len(words))
        total += sum(len(resp.bulk(word)) for word in words)
    return total
