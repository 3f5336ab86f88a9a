"""The fetch benchmark: the end and the start of a log, again and again.

A log is written first. Its end is served from the worker's tail cache, its start from the store
when the log is larger than the cache. Baselines: a bare uvloop server that sends as many bytes, and
XRANGE of the same entries.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import cast

import redis

from moldau.broker.store import keys
from moldau.broker.store.pipe import bulk, command
from moldau.broker.wire.messages.fetch import FetchRequest
from moldau.broker.wire.messages.produce import ProduceRequest
from moldau.loadtest.bench.harness.benchmark import Advance, Benchmark, Rows
from moldau.loadtest.bench.harness.client import Address, Client, RequestFailed, new_name
from moldau.loadtest.bench.harness.echo_server import echo_server
from moldau.loadtest.bench.harness.replay import FixedReplyReplayer, replaying, run_load
from moldau.loadtest.bench.harness.requests import (
    TOPIC_REQUESTS,
    RequestTypes,
    encode,
    fetch_request,
    produce_request,
)
from moldau.loadtest.bench.harness.target import Target, broker_under_test
from moldau.loadtest.bench.harness.turns import Comparison, Load, compare_sizes
from moldau.loadtest.bench.produce import make_batch, store_address
from moldau.ops.client import error_name

SIZES = [16384, 65536]
RESPONSE_BYTES = 1 << 20
TAIL, COLD, ECHO, RAW = "tail fetch", "cold fetch", "bare uvloop", "raw XRANGE"


class FetchComparison(Comparison):
    """One batch size."""

    baselines = {TAIL: ECHO, COLD: RAW}  # noqa: RUF012

    def __init__(self, target: Target, arguments: argparse.Namespace, size: int) -> None:
        super().__init__(target, arguments, size)
        self._topic = new_name()

    def __enter__(self) -> FetchComparison:
        batch = make_batch(self.size)
        batches = self._arguments.log_bytes // len(batch)
        with Client(self._target.address) as client:
            client.create_topic(self._topic, 1)
            self._leader = client.leaders(self._topic)[0]
        with Client(self._leader) as client:
            request = produce_request(self._topic, 0, batch)
            for _ in range(batches):
                answer = client.ask(request)
                if answer.responses[0].partition_responses[0].error_code:
                    raise RequestFailed("the log could not be written")
            end = client.end_offsets(self._topic)[0]
            self._entries = max(RESPONSE_BYTES // len(batch), 1)  # of a response
            self._tail_at = end - self._entries * (end // batches)
            self._reply_size = self._check(client, self._tail_at)
            self._check(client, 0)
        return self

    def __exit__(self, *exc: object) -> None:
        with Client(self._target.address) as client:
            client.delete_topic(self._topic)

    def _request(self, offset: int) -> FetchRequest:
        return fetch_request(self._topic, 0, offset, RESPONSE_BYTES)

    def _check(self, client: Client, offset: int) -> int:
        """The bytes of records in a response from this offset on."""
        answer = client.ask(self._request(offset)).responses[0].partitions[0]
        size = len(answer.records)
        if answer.error_code or size < RESPONSE_BYTES // 2:
            error = error_name(answer.error_code)
            raise RequestFailed(f"fetch at {offset}: {error}, {size} bytes")
        return size

    def loads(self) -> Iterator[tuple[str, Load]]:
        with echo_server(self._reply_size) as (address, _):
            yield ECHO, self._fetch(0, address)
        yield TAIL, self._fetch(self._tail_at, self._leader)
        if self._target.store_url is not None:
            yield RAW, self._raw(self._target.store_url)
        yield COLD, self._fetch(0, self._leader)

    def _fetch(self, offset: int, address: Address) -> Load:
        arguments = self._arguments
        connection = replaying([encode(self._request(offset))], arguments.in_flight, address)
        return lambda: run_load([connection] * arguments.connections, arguments.seconds)

    def _raw(self, store_url: str) -> Load:
        """XRANGE of as many entries, from the log itself."""
        arguments = self._arguments
        stream = keys.stream(self._topic, 0, 0)
        asked = command("XRANGE", stream, "-", "+", "COUNT", self._entries)
        reply_size = _reply_size(store_url, stream, self._entries)
        connection = (
            lambda: FixedReplyReplayer(asked, arguments.in_flight, reply_size),
            store_address(store_url),
        )
        return lambda: run_load([connection] * arguments.connections, arguments.seconds)


def _reply_size(store_url: str, stream: bytes, entries: int) -> int:
    """How many bytes the store's reply has on the wire."""
    with redis.Redis.from_url(store_url) as store:
        found = store.xrange(stream, count=entries)
    reply = cast("list[tuple[bytes, dict[bytes, bytes]]]", found)
    total = len(b"*%d\r\n" % len(reply))
    for entry_id, fields in reply:
        words = [word for pair in fields.items() for word in pair]
        total += len(b"*2\r\n") + len(bulk(entry_id)) + len(b"*%d\r\n" % len(words))
        total += sum(len(bulk(word)) for word in words)
    return total


def _run(arguments: argparse.Namespace, advance: Advance) -> Rows:
    needed: RequestTypes = [ProduceRequest, FetchRequest, *TOPIC_REQUESTS]
    with broker_under_test(arguments, needed) as target:
        sizes = arguments.size or SIZES
        return compare_sizes(FetchComparison, sizes, target, arguments, advance)


BENCHMARK = Benchmark(
    name="fetch",
    summary="1 MB responses from the end of a log (the worker's cache) and its start (the store)",
    baseline="a bare uvloop server; raw XRANGE of the same entries",
    run=_run,
    rounds=lambda arguments: len(arguments.size or SIZES) * arguments.repeat,
    any_broker=True,
    small={"size": [65536]},
)
