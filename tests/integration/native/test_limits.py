"""What native topics refuse: Moldau's own keys, and ids that no offset can stand for. And how
much a read of them can bring."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import redis as redis_py
from redis.crc import key_slot

from moldau.broker.errors import ErrorCode
from moldau.broker.store.native_steps import AT_ONCE
from moldau.broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tests.support.brokers.running import Broker
from tests.support.proofs.hammer import worker_ports
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient, make_batch, records_in

_names = (f"limits-{number}" for number in count())
NANOSECONDS = "1794810894019000000-0"


@pytest.fixture
def client(moldau: Broker) -> Iterator[RawClient]:
    with RawClient(worker_ports(moldau)[0]) as made:
        yield made


@pytest.fixture
def store(moldau: Broker) -> Iterator[redis_py.Redis]:
    with redis_py.from_url(moldau.store_url) as made:
        yield made


def refusal(client: RawClient, key: str, bits: int = 10) -> tuple[int, str]:
    """What creating a native topic over a stream is answered."""
    configs = {
        "moldau.storage": "native",
        "moldau.native.key": key,
        "moldau.native.sequence.bits": str(bits),
    }
    chosen = [CreatableTopicConfig(name, value) for name, value in configs.items()]
    topic = CreatableTopic(next(_names), 1, 1, configs=chosen)
    (answer,) = client.call(CreateTopicsRequest(topics=[topic])).topics
    return answer.error_code, answer.error_message or ""


def test_keys_of_our_own_are_no_topics_streams(client: RawClient) -> None:
    victim = next(_names)
    create_topic(client, victim)
    assert client.produce(victim, make_batch([(None, b"safe", 1)])).error_code == 0
    beside = f"{{app}}:moldau:{victim}:0:state"
    for key in (f"moldau:{victim}:0", "moldau:changes", "moldau:{topic}:x", "{moldau:x}", beside):
        code, message = refusal(client, key)
        assert code == ErrorCode.INVALID_CONFIG
        assert "Moldau's own" in message
    assert [record.value for record in records_in(client.fetch(victim, 0))] == [b"safe"]


@pytest.mark.parametrize("key", ["a}b", "{}x", "}{", "x}{topic}", "{}"])
def test_a_key_that_cannot_be_a_hash_tag_is_refused(client: RawClient, key: str) -> None:
    code, message = refusal(client, key)
    assert code == ErrorCode.INVALID_CONFIG
    assert "closing brace outside of a hash tag" in message


@pytest.mark.parametrize("key", ["{app}:one", "a}{app}", "open{"])
def test_a_key_with_braces_of_its_own(client: RawClient, store: redis_py.Redis, key: str) -> None:
    name = next(_names)
    create_topic(client, name, {"moldau.storage": "native", "moldau.native.key": key})
    assert client.produce(name, make_batch([(None, b"v", 1)])).error_code == 0
    assert store.xlen(key) == 1
    found: list[Any] = store.keys(f"*moldau:{name}:0:state")
    (beside,) = found
    assert key_slot(beside) == key_slot(key.encode())
    assert [record.value for record in records_in(client.fetch(name, 0))] == [b"v"]
    store.delete(key)


def test_a_stream_whose_ids_are_no_milliseconds_is_refused(
    client: RawClient, store: redis_py.Redis
) -> None:
    key = f"{next(_names)}:nanoseconds"
    store.xadd(key, {"v": "x"}, id=NANOSECONDS)
    for bits in (0, 10):
        code, message = refusal(client, key, bits)
        assert code == ErrorCode.INVALID_CONFIG
        assert "too large for an offset" in message
    store.delete(key)


def test_an_id_too_large_for_an_offset_is_logged_and_hurts_no_other_topic(
    client: RawClient, moldau: Broker, store: redis_py.Redis
) -> None:
    topic, other = next(_names), next(_names)
    create_topic(client, topic, {"moldau.storage": "native"})
    create_topic(client, other)
    assert client.produce(topic, make_batch([(None, b"good", 1)])).error_code == 0
    store.xadd(f"moldau:{topic}:0", {"v": "x"}, id=NANOSECONDS)
    length = store.xlen(f"moldau:{topic}:0")
    for _ in range(60):  # as often as a budget that leaked would take
        answer = client.fetch(topic, 0, max_bytes=50 << 20)
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    refused = client.produce(topic, make_batch([(None, b"late", 1)]))
    assert refused.error_code == ErrorCode.POLICY_VIOLATION
    assert store.xlen(f"moldau:{topic}:0") == length
    big = [(None, b"x" * 1_000, 1)] * 900
    for _ in range(5):
        assert client.produce(other, make_batch(big)).error_code == 0
    answer = client.fetch(other, 0, max_bytes=50 << 20)
    assert len(records_in(answer)) == 5 * 900
    assert "too large for an offset" in moldau.log()


def test_entries_that_become_large_are_not_read_by_the_hundred(
    client: RawClient, store: redis_py.Redis
) -> None:
    """Those before them were small, and many of them fit what a client asks for."""
    topic, size = next(_names), 100_000
    create_topic(client, topic, {"moldau.storage": "native", "retention.ms": -1})
    stream = f"moldau:{topic}:0"
    for ms in range(1, 201):
        store.xadd(stream, {"value": "small"}, id=f"{ms}-0")
    assert len(records_in(client.fetch(topic, 0))) > 0
    assert len(records_in(client.fetch(topic, 0))) == 200
    for ms in range(201, 701):
        store.xadd(stream, {"value": b"x" * size}, id=f"{ms}-0")

    before = _bytes_out(store)
    answer = client.fetch(topic, 0, max_bytes=1 << 20)

    assert _bytes_out(store) - before < (AT_ONCE + 10) * size
    values = [len(record.value or b"") for record in records_in(answer)]
    assert values[:201] == [5] * 200 + [size]
    assert sum(values) < 1 << 20


def _bytes_out(store: redis_py.Redis) -> int:
    facts: Any = store.info("stats")
    return int(facts["total_net_output_bytes"])
