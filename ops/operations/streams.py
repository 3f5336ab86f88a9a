"""The Redis side of native topics: what Redis shows of their streams, asked of a worker.

Kafka's protocol has no field for it, so it is known on the machine of the broker only.
"""

from __future__ import annotations

from collections.abc import Sequence

from moldau.broker.metrics.stream_views import (
    MAX_STREAMS,
    STREAM_VIEWS,
    Question,
    StreamView,
    decode_views,
    encode_question,
)
from moldau.broker.store import keys
from moldau.ops.client import Cluster
from moldau.ops.operations.local_workers import LocalWorkers


def stream_keys(pattern: str, topic: str, partitions: Sequence[int]) -> list[bytes]:
    return [keys.native_key(pattern, topic, partition) for partition in partitions]


def stream_views(
    cluster: Cluster, streams: Sequence[bytes], *, groups: bool = True, entries: bool = False
) -> list[StreamView | None] | None:
    """In the order of the keys; None for those that could not be read, and for all where no worker
    can be asked from here."""
    workers = LocalWorkers(cluster)
    nodes = cluster.nodes()
    found: list[StreamView | None] = []
    for first in range(0, len(streams), MAX_STREAMS):
        question = Question(list(streams[first : first + MAX_STREAMS]), groups, entries)
        answers = (workers.ask(node, STREAM_VIEWS, encode_question(question)) for node in nodes)
        answer = next((each for each in answers if each is not None), None)
        if answer is None:
            return None
        found += decode_views(answer)
    return found
