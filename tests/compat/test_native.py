"""Native topics: what Redis applications write every Kafka client reads, and the reverse."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.support.brokers.running import Broker
from tests.support.clients.aiokafka import Aiokafka
from tests.support.clients.base import (
    CREATE_TIME,
    EARLIEST,
    LATEST,
    Client,
    NewTopic,
    Place,
    Received,
    Record,
    Refused,
)
from tests.support.clients.confluent import Confluent
from tests.support.clients.kafka_python import KafkaPython
from tests.support.compat.session import Session, read, send_all, values

NATIVE = {"moldau.storage": "native"}
BINARY = bytes(range(256))
MEGABYTE = b"\x00\xff" * (1 << 19)
NEARLY = MEGABYTE[:900_000]  # by default no client sends more than a megabyte
OFFSET_OUT_OF_RANGE, INVALID_CONFIG = 1, 40


@pytest.fixture(params=[Confluent, KafkaPython, Aiokafka], ids=lambda kind: kind.name)
def client(request: pytest.FixtureRequest) -> Client:
    made: Client = request.param()
    return made


@pytest.fixture
def store(moldau: Broker) -> Iterator[Any]:
    with redis.Redis.from_url(moldau.store_url) as connected:
        yield connected


def key_of(topic: str, partition: int = 0) -> str:
    return f"moldau:{topic}:{partition}"


def offset_of(raw: bytes, bits: int = 10) -> int:
    ms, _, seq = raw.partition(b"-")
    return (int(ms) << bits) + int(seq)


def test_redis_writes_and_a_client_reads(kafka: Session, store: Any) -> None:
    topic = kafka.topic(configs=NATIVE)
    key = key_of(topic)
    entries = [
        {"value": "plain"},
        {"key": "k", "value": "with a key", "timestamp": "1700000000000"},
        {"value": "", "key": ""},
        {"key": "tombstone"},
        {"value": BINARY, "header.h": BINARY, "header.h2": ""},
        {"name": "Eliška", "age": "7"},
        {"name": BINARY},
        {"value": MEGABYTE},
        {"value": "last"},
    ]
    ids = [store.xadd(key, fields) for fields in entries]

    got = kafka.read(topic, len(entries))

    assert [one.offset for one in got] == [offset_of(raw) for raw in ids]
    assert [(one.key, one.value) for one in got[:5]] == [
        (None, b"plain"),
        (b"k", b"with a key"),
        (b"", b""),
        (b"tombstone", None),
        (None, BINARY),
    ]
    assert got[0].timestamp == offset_of(ids[0]) >> 10
    assert got[0].timestamp_type == CREATE_TIME
    assert got[1].timestamp == 1700000000000
    assert got[4].headers == [("h", BINARY), ("h2", b"")]
    assert json.loads(got[5].value or b"") == {"name": "Eliška", "age": "7"}
    assert "base64" in json.loads(got[6].value or b"")["name"]
    assert values(got[7:]) == [MEGABYTE, b"last"]


def test_a_client_writes_and_redis_reads(kafka: Session, store: Any) -> None:
    topic = kafka.topic(configs=NATIVE)
    records = [
        Record(value=b"v", key=b"k", timestamp=1700000000000, headers=[("h", BINARY), ("e", b"")]),
        Record(value=None, key=b"tombstone"),
        Record(value=b"", key=None),
        Record(value=NEARLY, key=BINARY),
    ]

    placed = [kafka.produce(topic, [record])[0] for record in records]

    found = store.xrange(key_of(topic))
    assert [offset_of(raw) for raw, _ in found] == [one.offset for one in placed]
    first, *others = [fields for _, fields in found]
    assert first == {
        b"key": b"k",
        b"value": b"v",
        b"timestamp": b"1700000000000",
        b"header.h": BINARY,
        b"header.e": b"",
    }
    for fields in others:
        assert abs(int(fields.pop(b"timestamp")) - time.time() * 1000) < 600_000
    assert others == [
        {b"key": b"tombstone"},
        {b"value": b""},
        {b"key": BINARY, b"value": NEARLY},
    ]
    assert values(kafka.read(topic, 4)) == [record.value for record in records]


def test_every_codec(kafka: Session, store: Any) -> None:
    topic = kafka.topic(configs=NATIVE)
    sent = []
    for codec in sorted(kafka.client.codecs):
        some = [Record(value=b"%s %d" % (codec.encode(), n), partition=0) for n in range(50)]
        kafka.produce(topic, some, codec=codec)
        sent += [record.value for record in some]

    assert [fields[b"value"] for _, fields in store.xrange(key_of(topic))] == sent
    assert values(kafka.read(topic, len(sent))) == sent


def test_an_idempotent_producer_in_many_batches(kafka: Session, store: Any) -> None:
    topic = kafka.topic(configs=NATIVE)
    wanted = [b"%d" % number for number in range(3000)]
    records = [Record(value=value, partition=0) for value in wanted]

    placed = kafka.produce(topic, records, idempotent=True, batch_bytes=2_000)

    found = store.xrange(key_of(topic))
    assert [fields[b"value"] for _, fields in found] == wanted
    assert [offset_of(raw) for raw, _ in found] == [one.offset for one in placed]
    assert values(kafka.read(topic, 3000, partition_fetch_bytes=5_000)) == wanted


def test_earliest_latest_and_times(kafka: Session, store: Any) -> None:
    topic = kafka.topic(configs=NATIVE)
    place = Place(topic)
    consumer = kafka.consumer()
    consumer.assign({place: EARLIEST})
    assert consumer.watermarks(place) == (0, 0)
    ms = 1_700_000_000_000
    for number in range(4):
        store.xadd(key_of(topic), {"value": str(number)}, id=f"{ms + number * 3_600_000}-0")

    assert consumer.watermarks(place)[1] == (ms + 3 * 3_600_000 << 10) + 1
    assert consumer.offsets_for_times({place: ms + 1}) == {place: ms + 3_600_000 << 10}
    assert consumer.offsets_for_times({place: ms}) == {place: ms << 10}
    assert consumer.offsets_for_times({place: ms + 4 * 3_600_000}) == {place: None}
    # A topic that is quiet for hours: batches cannot span them.
    assert values(read(consumer, 4)) == [b"0", b"1", b"2", b"3"]
    consumer.seek(place, ms + 2 * 3_600_000 << 10)
    assert values(read(consumer, 2)) == [b"2", b"3"]
    consumer.seek(place, (ms + 3_600_000 << 10) + 5)  # where nothing is, the next there is
    assert values(read(consumer, 2)) == [b"2", b"3"]


def test_who_begins_at_the_end_gets_what_comes(kafka: Session, store: Any) -> None:
    topic = kafka.topic(configs=NATIVE)
    store.xadd(key_of(topic), {"value": "before"})
    consumer = kafka.consumer()
    consumer.assign({Place(topic): LATEST})

    # Clients look for the end when they like; what is written after that they must see.
    got: list[Received] = []
    written = 0
    while not got:
        assert written < 300, "nothing of what was written came"
        store.xadd(key_of(topic), {"value": str(written)})
        written += 1
        got = consumer.poll(0.1)
    first = int(got[0].value or b"-1")
    got += read(consumer, written - first - len(got)) if len(got) < written - first else []
    assert values(got) == [b"%d" % number for number in range(first, written)]


def test_beyond_the_end_is_out_of_range(kafka: Session, store: Any) -> None:
    topic = kafka.topic(configs=NATIVE)
    raw = store.xadd(key_of(topic), {"value": "v"})
    consumer = kafka.consumer(offset_reset="none")
    consumer.assign({Place(topic): offset_of(raw) + 1000})

    with pytest.raises(Refused) as refusal:
        read(consumer, 1, patience_s=20)

    assert refusal.value.code == kafka.sees(OFFSET_OUT_OF_RANGE)


def test_delete_records(kafka: Session, store: Any) -> None:
    topic = kafka.topic(configs=NATIVE)
    place = Place(topic)
    ids = [store.xadd(key_of(topic), {"value": str(number)}) for number in range(10)]
    offset = offset_of(ids[4])

    assert kafka.admin.delete_records(place, offset) == offset

    assert [raw for raw, _ in store.xrange(key_of(topic))] == ids[4:]
    assert values(kafka.read(topic, 6)) == [b"%d" % number for number in range(4, 10)]
    consumer = kafka.consumer(offset_reset="earliest")
    consumer.assign({place: offset_of(ids[1])})  # which is gone: begin at the beginning
    assert values(read(consumer, 6))[0] == b"4"
    end = offset_of(ids[-1]) + 1
    assert kafka.admin.delete_records(place, LATEST) == end
    assert store.xlen(key_of(topic)) == 0
    store.xadd(key_of(topic), {"value": "new"})
    consumer.seek(place, end)  # nothing was lost since
    assert values(read(consumer, 1)) == [b"new"]


def test_partitions(kafka: Session, store: Any) -> None:
    topic = kafka.topic(3, configs=NATIVE)
    kafka.produce(topic, [Record(value=b"%d" % n, partition=n) for n in range(3)])
    for partition in range(3):
        store.xadd(key_of(topic, partition), {"value": f"redis {partition}"})

    got = kafka.read(topic, 6, partitions=3)

    assert sorted((one.partition, one.value) for one in got) == sorted(
        [(n, b"%d" % n) for n in range(3)] + [(n, b"redis %d" % n) for n in range(3)]
    )


def test_deleted_and_created_again(kafka: Session, store: Any) -> None:
    topic = kafka.topic(configs=NATIVE)
    kafka.produce(topic, [Record(value=b"old")])

    kafka.admin.delete_topics([topic])
    assert not store.exists(key_of(topic))
    kafka.admin.create_topics([native_topic(topic)])
    kafka.wait_for_partitions(topic, 1)
    kafka.produce(topic, [Record(value=b"new")])

    assert [fields[b"value"] for _, fields in store.xrange(key_of(topic))] == [b"new"]
    assert values(kafka.read(topic, 1)) == [b"new"]


def native_topic(name: str, configs: dict[str, str] | None = None) -> NewTopic:
    return NewTopic(name, 1, {**NATIVE, **(configs or {})})


def test_a_stream_of_another_application(kafka: Session, store: Any) -> None:
    stream = f"app:{kafka.new_name()}"
    store.xadd(stream, {"json": '{"a":1}', "source": "x"})
    topic = kafka.topic(
        configs={**NATIVE, "moldau.native.key": stream, "moldau.native.value": "json"}
    )

    assert values(kafka.read(topic, 1)) == [b'{"a":1}']
    kafka.produce(topic, [Record(value=b"from Kafka")])
    assert store.xlen(stream) == 2
    kafka.admin.delete_topics([topic])

    assert store.xlen(stream) == 2
    assert not store.keys(f"*moldau:{topic}:0*")


def test_entries_that_do_not_fit_are_delivered_once_and_in_order(
    kafka: Session, store: Any
) -> None:
    topic = kafka.topic(configs=NATIVE)
    script = """
        local ms = ARGV[1] .. '-'
        for i = 0, 4999 do redis.call('XADD', KEYS[1], ms .. i, 'value', i) end
    """
    first = int(time.time() * 1000) - 5000
    store.eval(script, 1, key_of(topic), first)
    store.eval(script, 1, key_of(topic), first + 2)
    store.xadd(key_of(topic), {"value": "last"})
    wanted = [b"%d" % number for number in range(5000)] * 2 + [b"last"]

    for limit in (None, 40_000):
        got = kafka.read(topic, len(wanted), partition_fetch_bytes=limit)
        assert values(got) == wanted
        offsets = [one.offset for one in got]
        assert offsets == sorted(set(offsets))
    consumer = kafka.consumer()
    for at in (1023, 1024, 3000, 4999, 5000, 5001, 7000, 9999):
        consumer.assign({Place(topic): offsets[at]})
        assert values(read(consumer, len(wanted) - at)) == wanted[at:]
        consumer.close()
        consumer = kafka.consumer()
    kafka.produce(topic, [Record(value=b"mine")])
    consumer.assign({Place(topic): offsets[-1] + 1})
    assert values(read(consumer, 1)) == [b"mine"]


def test_a_waiting_client_is_woken(kafka: Session, store: Any) -> None:
    topic = kafka.topic(configs=NATIVE)
    # A broker that only looked again when the wait is over would be too late for `read`.
    consumer = kafka.consumer(fetch_max_wait_ms=25_000)
    consumer.assign({Place(topic): EARLIEST})
    consumer.poll(1.0)

    for number in range(20):
        store.xadd(key_of(topic), {"value": str(number)})
        assert values(read(consumer, 1, patience_s=15)) == [b"%d" % number]


def test_settings_that_cannot_be(kafka: Session, store: Any) -> None:
    refused = kafka.sees(INVALID_CONFIG)
    for configs in (
        {"cleanup.policy": "compact"},
        {"moldau.native.sequence.bits": "21"},
    ):
        name = kafka.new_name()
        assert kafka.admin.create_topics([native_topic(name, configs)]) == {name: refused}
    topic = kafka.topic(configs=NATIVE)
    changed = {**NATIVE, "moldau.native.sequence.bits": "12"}
    assert kafka.admin.replace_topic_configs(topic, changed) == refused
    text = kafka.new_name()
    store.set(f"moldau:{text}:0", "text")
    assert kafka.admin.create_topics([native_topic(text)]) == {text: refused}


def test_writing_at_once(kafka: Session, store: Any) -> None:
    """Redis and Kafka write the same stream: nothing is lost, what each wrote is in order."""
    topic = kafka.topic(configs=NATIVE)
    producer = kafka.producer(linger_ms=1)
    for number in range(300):
        producer.send(topic, Record(value=b"k%03d" % number, partition=0))
        if number % 3 == 0:
            store.xadd(key_of(topic), {"value": f"r{number:03}"})
    send_all(producer, topic, [])

    got = values(kafka.read(topic, 400))

    assert [one for one in got if one and one[:1] == b"k"] == [b"k%03d" % n for n in range(300)]
    assert [one for one in got if one and one[:1] == b"r"] == [
        b"r%03d" % n for n in range(0, 300, 3)
    ]
