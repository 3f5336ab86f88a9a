"""How fast the wire protocol is: `python -m loadtest.bench.wire_speed [--json]`.

Times the generated codecs alone, without sockets or a store: what one request costs a worker
before anything is done about it. Each row is the fastest of many repeats, because on a shared
machine everything slower than that is somebody else's work; next to it stands what the call
allocated at its peak, which shows that record batches pass through without being copied.
"""

from __future__ import annotations

import argparse
import json
import os
import timeit
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from broker.wire.apis import APIS, Api
from broker.wire.frame import read_request_header, request_frame, response_frame
from broker.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from broker.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from broker.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from broker.wire.schema import Message, fields_of

PRODUCE, FETCH, METADATA, HEARTBEAT, API_VERSIONS, INIT_PRODUCER_ID = 0, 1, 3, 12, 18, 22
ROUND_SECONDS = 0.02


class Measured(NamedTuple):
    what: str
    microseconds: float
    frame_bytes: int
    peak_allocated_bytes: int


class Subject(NamedTuple):
    """What is timed, and the size of the frame it reads or writes."""

    what: str
    run: Callable[[], object]
    frame_bytes: int


def _received(api: Api, version: int, message: Message) -> bytearray:
    """A request as a worker finds it: in memory of its own, without the length before it."""
    return bytearray(request_frame(api, version, 1, "wire-speed", message)[4:])


def _decoding(what: str, api: Api, version: int, message: Message) -> Subject:
    frame = _received(api, version, message)

    def run() -> object:
        header = read_request_header(frame)
        assert header.api is not None
        return header.api.request_codec(header.api_version).decode(frame, header.body_at)

    return Subject(f"{what}: header and request decoded", run, len(frame))


def _encoding(what: str, api: Api, version: int, message: Message) -> Subject:
    size = sum(map(len, response_frame(api, version, 1, message)))
    return Subject(
        f"{what}: response encoded", lambda: response_frame(api, version, 1, message), size
    )


def _both(what: str, api: Api, version: int, request: Message, response: Message) -> Subject:
    decode = _decoding(what, api, version, request)
    encode = _encoding(what, api, version, response)

    def run() -> object:
        decode.run()
        return encode.run()

    return Subject(
        f"{what}: request decoded, response encoded", run, decode.frame_bytes + encode.frame_bytes
    )


def _small() -> Subject:
    """The most frequent small request: Heartbeat, or what comes nearest while it is not served."""
    api = APIS.get(HEARTBEAT, APIS[INIT_PRODUCER_ID])
    version = min(api.highest, 4)
    request = api.request(
        **{
            field.name: "a-name-of-usual-length"
            for field in fields_of(api.request)
            if field.kind == "string" and not field.is_array
        }
    )
    return _both(f"{api.name} v{version}", api, version, request, api.response())


def _metadata(topics: int, partitions: int) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(n, "localhost", 9093 + n) for n in range(3)],
        cluster_id="moldau",
        controller_id=0,
        topics=[
            MetadataResponseTopic(
                name=f"topic-{t}",
                topic_id=t.to_bytes(16, "big"),
                partitions=[
                    MetadataResponsePartition(
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


def subjects() -> Iterator[Subject]:
    yield _small()
    yield _both(
        "ApiVersions v3",
        APIS[API_VERSIONS],
        3,
        ApiVersionsRequest("wire-speed", "1.0"),
        ApiVersionsResponse(
            api_keys=[ApiVersion(api.key, api.lowest, api.highest) for api in APIS.values()],
            finalized_features_epoch=1,
            finalized_features=[FinalizedFeatureKey("metadata.version", 29, 29)],
        ),
    )
    yield _encoding("Metadata v12, 100 topics x 3", APIS[METADATA], 12, _metadata(100, 3))
    batch = PartitionProduceData(0, os.urandom(16 << 10))
    yield _decoding(
        "Produce v9, 16 KB",
        APIS[PRODUCE],
        9,
        ProduceRequest(None, -1, 30000, [TopicProduceData("topic", partition_data=[batch])]),
    )
    appended = TopicProduceResponse("topic", partition_responses=[PartitionProduceResponse(0)])
    yield _encoding("Produce v9", APIS[PRODUCE], 9, ProduceResponse([appended]))
    wanted = [
        FetchPartition(p, fetch_offset=1 << 40, partition_max_bytes=1 << 20) for p in range(3)
    ]
    yield _decoding(
        "Fetch v12, 3 partitions",
        APIS[FETCH],
        12,
        FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchTopic("topic", partitions=wanted)]),
    )
    found = PartitionData(high_watermark=1 << 40, records=[os.urandom(64 << 10)] * 16)
    yield _encoding(
        "Fetch v12, 1 MB of records",
        APIS[FETCH],
        12,
        FetchResponse(responses=[FetchableTopicResponse("topic", partitions=[found])]),
    )


def measure(subject: Subject, repeats: int) -> Measured:
    subject.run()  # compiled now, not while measuring
    timer = timeit.Timer(subject.run)
    rounds, taken = timer.autorange()
    rounds = max(1, int(rounds * ROUND_SECONDS / taken))
    fastest = min(timer.repeat(repeats, rounds)) / rounds
    tracemalloc.start()
    try:
        kept = subject.run()  # held, so that what it allocated counts
        _, peak = tracemalloc.get_traced_memory()
        del kept
    finally:
        tracemalloc.stop()
    return Measured(subject.what, round(fastest * 1e6, 2), subject.frame_bytes, peak)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.wire_speed", description=__doc__
    )
    parser.add_argument("--json", action="store_true", help="one JSON array instead of a table")
    parser.add_argument("--repeats", type=int, default=50, help="rounds per row; the best counts")
    options: Any = parser.parse_args(arguments)
    rows = [measure(subject, options.repeats) for subject in subjects()]
    if options.json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
        return
    width = max(len(row.what) for row in rows)
    print(f"{'':{width}}  {'us':>8}  {'frame, bytes':>12}  {'allocated':>10}")
    for row in rows:
        print(
            f"{row.what:{width}}  {row.microseconds:8.2f}  {row.frame_bytes:12,}"
            f"  {row.peak_allocated_bytes:10,}"
        )


if __name__ == "__main__":
    main()
