"""The wire benchmark: the generated codecs alone, without sockets or a store.

What decoding a request and encoding its response cost a worker. The time is the fastest of many
rounds, because on a shared machine everything slower is other processes' work; next to it stands
the peak of what one call allocates, which shows that record batches are not copied.
"""

from __future__ import annotations

import argparse
import os
import timeit
import tracemalloc
from collections.abc import Callable, Iterator
from typing import NamedTuple

from moldau.broker.wire.apis import APIS
from moldau.broker.wire.batch import BatchHeader, read_header
from moldau.broker.wire.codecs import CODEC_NAMES
from moldau.broker.wire.frame import read_request_header, request_frame, response_frame
from moldau.broker.wire.messages import metadata, produce
from moldau.broker.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from moldau.broker.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.broker.wire.records import Record, build_batch, check_records, payload_of
from moldau.broker.wire.schema import Message
from moldau.loadtest.bench.harness.benchmark import Advance, Benchmark, Row, Rows
from moldau.loadtest.bench.harness.requests import produce_request
from moldau.ops.client import API_OF

ROUND_SECONDS = 0.02
MAX_UNPACKED = 1 << 26


class Case(NamedTuple):
    """What is timed, and the size of the frames it reads or writes."""

    name: str
    run: Callable[[], object]
    frame_bytes: int


def _decoding(what: str, version: int, request: Message) -> Case:
    # As a worker finds it: in memory of its own, without the length.
    frame = bytearray(request_frame(API_OF[type(request)], version, 1, "wire", request)[4:])

    def run() -> object:
        header = read_request_header(frame)
        assert header.api is not None
        return header.api.request_codec(header.api_version).decode(frame, header.body_at)

    return Case(f"{what}: request decoded", run, len(frame))


def _encoding(what: str, version: int, request: type[Message], response: Message) -> Case:
    api = API_OF[request]
    size = sum(map(len, response_frame(api, version, 1, response)))
    return Case(
        f"{what}: response encoded", lambda: response_frame(api, version, 1, response), size
    )


def _both(what: str, version: int, request: Message, response: Message) -> Case:
    decode = _decoding(what, version, request)
    encode = _encoding(what, version, type(request), response)

    def run() -> object:
        decode.run()
        return encode.run()

    name = f"{what}: request decoded, response encoded"
    return Case(name, run, decode.frame_bytes + encode.frame_bytes)


def _metadata(topics: int, partitions: int) -> metadata.MetadataResponse:
    return metadata.MetadataResponse(
        brokers=[metadata.MetadataResponseBroker(n, "localhost", 9093 + n) for n in range(3)],
        cluster_id="moldau",
        controller_id=0,
        topics=[
            metadata.MetadataResponseTopic(
                name=f"topic-{t}",
                topic_id=t.to_bytes(16, "big"),
                partitions=[
                    metadata.MetadataResponsePartition(
                        partition_index=p,
                        leader_id=p % 3,
                        leader_epoch=0,
                        replica_nodes=[p % 3],
                        isr_nodes=[p % 3],
                    )
                    for p in range(partitions)
                ],
            )
            for t in range(topics)
        ],
    )


def _validations() -> Iterator[Case]:
    """`moldau.batch.validation=full`: unpacking a batch and checking its records.

    Alike: records of one size, as a performance test sends them. Varied: of 0.5 to 1.5 times that.
    """
    for count, size in ((16, 1000), (160, 100)):
        for kind in ("alike", "varied"):
            records = [
                Record(at, 0, b"%06d" % at, _text(size if kind == "alike" else _size(size, at)))
                for at in range(count)
            ]
            for codec in ("none", "lz4", "zstd", "snappy", "gzip"):
                batch = build_batch(
                    records, base_offset=0, last_offset=count - 1, codec=CODEC_NAMES[codec]
                )
                header = read_header(batch)

                def run(batch: bytearray = batch, header: BatchHeader = header) -> None:
                    payload = payload_of(batch, header, MAX_UNPACKED)
                    check_records(
                        header.record_count, payload, header.max_timestamp - header.base_timestamp
                    )

                what = f"{count} x {size} B, {kind}, {codec}: batch validated"
                yield Case(what, run, len(batch))


def _size(average: int, at: int) -> int:
    return average // 2 + at * 7919 % average


def _text(size: int) -> bytes:
    """Compresses about as well as JSON does."""
    words = (b'{"id":%d,"name":"n%d"},' % (at * 7919 % 9973, at) for at in range(size // 20 + 1))
    return b"".join(words)[:size]


def cases() -> Iterator[Case]:
    yield from codec_cases()
    yield from _validations()


def codec_cases() -> Iterator[Case]:
    name = "a-name-of-usual-length"
    yield _both("Heartbeat v4", 4, HeartbeatRequest(name, 1, name), HeartbeatResponse())
    yield _both(
        "ApiVersions v3",
        3,
        ApiVersionsRequest("wire", "1.0"),
        ApiVersionsResponse(
            api_keys=[ApiVersion(api.key, api.lowest, api.highest) for api in APIS.values()],
            finalized_features_epoch=1,
            finalized_features=[FinalizedFeatureKey("metadata.version", 29, 29)],
        ),
    )
    described = _metadata(100, 3)
    yield _encoding("Metadata v12, 100 topics x 3", 12, metadata.MetadataRequest, described)
    yield _decoding("Produce v9, 16 KB", 9, produce_request("topic", 0, os.urandom(16 << 10)))
    appended = produce.TopicProduceResponse(
        "topic", partition_responses=[produce.PartitionProduceResponse(0)]
    )
    yield _encoding("Produce v9", 9, produce.ProduceRequest, produce.ProduceResponse([appended]))
    wanted = [
        FetchPartition(p, fetch_offset=1 << 40, partition_max_bytes=1 << 20) for p in range(3)
    ]
    fetch = FetchRequest(
        max_wait_ms=500, min_bytes=1, topics=[FetchTopic("topic", partitions=wanted)]
    )
    yield _decoding("Fetch v12, 3 partitions", 12, fetch)
    found = PartitionData(high_watermark=1 << 40, records=[os.urandom(64 << 10)] * 16)
    fetched = FetchResponse(responses=[FetchableTopicResponse("topic", partitions=[found])])
    yield _encoding("Fetch v12, 1 MB of records", 12, FetchRequest, fetched)


def measure(case: Case, seconds: float) -> Row:
    case.run()  # compiles the codec
    timer = timeit.Timer(case.run)
    calls, taken = timer.autorange()
    calls = max(1, int(calls * ROUND_SECONDS / taken))
    rounds = max(1, int(seconds / ROUND_SECONDS))
    fastest = min(timer.repeat(rounds, calls)) / calls
    return {
        "run": case.name,
        "us": fastest * 1e6,
        "frame bytes": case.frame_bytes,
        "peak allocated bytes": peak_allocated(case),
    }


def peak_allocated(case: Case) -> int:
    tracemalloc.start()
    try:
        kept = case.run()  # referenced, so that what it allocated counts
        _, peak = tracemalloc.get_traced_memory()
        del kept
    finally:
        tracemalloc.stop()
    return peak


def _run(arguments: argparse.Namespace, advance: Advance) -> Rows:
    rows: Rows = []
    for case in cases():
        rows.append(measure(case, arguments.seconds))
        advance()
    return rows


BENCHMARK = Benchmark(
    name="wire",
    summary="the codecs alone: decoding requests, encoding responses; no broker is started",
    baseline="",
    run=_run,
    rounds=lambda arguments: len(list(cases())),
    in_all=False,
)
