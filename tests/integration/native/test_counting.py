"""How many records are behind an offset of a native topic, asked of a worker as tools do."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import pytest
import redis

from moldau.broker.private.api import PrivateApi, private_frame
from moldau.broker.private.client import ask_blocking, exchange
from moldau.broker.private.stream_views import (
    MAX_ENTRIES,
    MAX_FIELD_BYTES,
    MAX_GROUPS,
    MAX_PENDING,
    MAX_STREAMS,
    StreamsWanted,
)
from moldau.broker.private.table import (
    MAX_BEHIND,
    RECORD_COUNTS,
    STREAM_VIEWS,
    UNKNOWN,
    Behind,
    Counts,
)
from moldau.ops.serve.runtime import worker_socket
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient

Q = TypeVar("Q")
A = TypeVar("A")


def ask(broker: Broker, api: PrivateApi[Q, A], request: Q, worker: int = 0) -> A:
    path = worker_socket(broker.directory / "run", broker.port, worker)
    found = ask_blocking(str(path), api, request, 30)
    assert found is not None
    return found


def counts(broker: Broker, behind: list[Behind], worker: int = 0) -> Counts:
    return ask(broker, RECORD_COUNTS, behind, worker)


@pytest.fixture
def topic(moldau: Broker, request: pytest.FixtureRequest) -> str:
    name = f"counted-{abs(hash(request.node.name)) % 10**8}"
    with RawClient(moldau.port) as client:
        create_topic(client, name, {"moldau.storage": "native"})
    return name


def test_every_worker_counts_the_same(moldau: Broker, topic: str) -> None:
    with redis.Redis.from_url(moldau.store_url) as store:
        for ms in range(1, 301):
            store.xadd(f"moldau:{topic}:0", {"value": "v"}, id=f"{ms}-0")
        wanted = [(topic, 0, "g", ms << 10) for ms in (0, 1, 2, 150, 300, 301)]
        for worker in range(len(moldau.pids("worker"))):
            assert counts(moldau, wanted, worker) == [300, 300, 299, 151, 1, 0]
        store.xtrim(f"moldau:{topic}:0", 100)
        assert counts(moldau, wanted) == [100, 100, 100, 100, 1, 0]
        store.xtrim(f"moldau:{topic}:0", 0)
        assert counts(moldau, wanted) == [0] * 6


def test_large_entries_are_not_read_for_it_without_end(moldau: Broker, topic: str) -> None:
    stream = f"moldau:{topic}:0"
    with redis.Redis.from_url(moldau.store_url) as store:
        for ms in range(1, 161):
            store.xadd(stream, {"value": b"v" * (1 << 20)}, id=f"{ms}-0")
        near, far = [(topic, 0, "g", 150 << 10)], [(topic, 0, "g", 80 << 10)]
        wait_until(lambda: counts(moldau, near) == [11], 60, "there was time to count them")
        # None: there was no time, as on a busy machine.
        assert counts(moldau, far) in ([UNKNOWN], [None])
        store.delete(stream)


def test_what_is_not_there_is_unknown(moldau: Broker, topic: str) -> None:
    wanted: list[Behind] = [("no-such-topic", 0, "g", 0), (topic, 7, "g", 0), (topic, -1, "g", 0)]
    assert counts(moldau, wanted) == [UNKNOWN] * 3
    assert len(counts(moldau, [(topic, 0, "g", 1)] * (MAX_BEHIND + 50))) == MAX_BEHIND


def test_a_stream_is_shown_within_bounds(moldau: Broker, topic: str) -> None:
    stream = f"moldau:{topic}:0".encode()
    with redis.Redis.from_url(moldau.store_url) as store:
        for ms in range(1, 31):
            fields = {b"f%d" % number: b"\xff" * 10_000 for number in range(40)}
            store.xadd(stream, fields, id=f"{ms}-0")
        for number in range(MAX_GROUPS + 5):
            store.xgroup_create(stream, f"g{number:03}", "0")
        store.xreadgroup("g000", b"\xfe consumer", {stream: ">"})
        wanted = StreamsWanted([stream, b"no-such-key"] + [stream] * 40, has_entries=True)
        views = ask(moldau, STREAM_VIEWS, wanted)
        assert len(STREAM_VIEWS.answer(views)) < 10 << 20
        assert len(views) == MAX_STREAMS
        view, missing = views[0], views[1]
        assert view is not None
        assert missing is not None
        assert missing.kind == "none"
        assert (view.length, view.added, view.first, view.last) == (30, 30, "1-0", "30-0")
        assert (view.group_count, len(view.groups)) == (MAX_GROUPS + 5, MAX_GROUPS)
        first = view.groups[0]
        assert (first.name, first.pending, len(first.oldest_pending)) == ("g000", 30, MAX_PENDING)
        assert first.oldest_pending[0].id == "1-0"
        assert len(view.entries) == MAX_ENTRIES
        entry = view.entries[0]
        assert (entry.id, entry.count, len(entry.fields)) == ("30-0", 40, 32)
        assert {(len(field.value), field.size) for field in entry.fields} == {
            (MAX_FIELD_BYTES, 10_000)
        }
        store.delete(stream)


def test_questions_that_are_none_close_the_connection_and_nothing_else(moldau: Broker) -> None:
    path = str(worker_socket(moldau.directory / "run", moldau.port, 0))
    for api in (RECORD_COUNTS, STREAM_VIEWS):
        for body in (b"", b"\xc1", msgspec.msgpack.encode([["t"]]), msgspec.msgpack.encode(7)):
            assert exchange(path, private_frame(api.key, body), 30) in (None, b"")
    assert counts(moldau, []) == []
