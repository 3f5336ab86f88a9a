"""`moldau topics adopt`: streams that redis-py wrote become topics that confluent-kafka reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from confluent_kafka import Consumer, TopicPartition

from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker, wait_until


def everything_of(store: redis.Redis, key: str) -> Any:
    """Entries, ids, groups, consumers, pending entries: all that XINFO tells."""
    return store.xinfo_stream(key, full=True)


def read_all(broker: Broker, topic: str, count: int, partition: int = 0) -> list[Any]:
    """So many messages from the beginning, by a consumer without a group."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    got: list[Any] = []

    def enough() -> bool:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None
            got.append(message)
        return len(got) >= count

    try:
        wait_until(enough, 30, f"{count} messages of {topic}")
    finally:
        consumer.close()
    return got


def test_a_stream_becomes_a_topic_and_stays_as_it_is(
    moldau: Broker, cli: Cli, store: redis.Redis, name: str
) -> None:
    key = f"{name}:raw/1"
    store.xadd(key, {"t": "21.5", "room": "k"}, id="1234567890123-5")
    store.xadd(key, {"t": "21.6", "room": "k"})
    store.xgroup_create(key, "dashboard", "0")
    store.xreadgroup("dashboard", "d1", {key: ">"}, count=1)
    before = everything_of(store, key)

    done = cli("topics", "adopt", "--stream", key)
    assert done.returncode == 0, done.stderr
    topic = f"{name}-raw-1"
    assert f"the topic is named {topic}" in done.stdout
    assert "10: up to 1,024 entries of one millisecond" in done.stdout

    first, second = read_all(moldau, topic, 2)
    assert first.offset() == 1234567890123 << 10 | 5
    assert first.value() == b'{"t":"21.5","room":"k"}'
    assert first.timestamp()[1] == 1234567890123
    assert second.value() == b'{"t":"21.6","room":"k"}'
    assert everything_of(store, key) == before

    (described,) = cli.json("topics", "describe", topic)["topics"]
    group = {
        "partition": 0,
        "group": "dashboard",
        "consumers": 1,
        "pending": 1,
        "last_delivered": "1234567890123-5",
        "lag": 1,
    }
    assert described["native"] == {"stream": key, "bits": 10, "value": None, "groups": [group]}
    assert described["records"] is None
    shown = cli("topics", "describe", topic).stdout
    assert "storage     native" in shown
    assert f"stream      {key}" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["0", "dashboard", "1", "1", "1234567890123-5", "1"] in rows

    cli("topics", "delete", topic, "--yes")
    assert everything_of(store, key) == before


def test_bits_are_chosen_so_that_every_id_fits(
    moldau: Broker, cli: Cli, store: redis.Redis, name: str
) -> None:
    store.xadd(name, {"value": "a"}, id="5-1")
    store.xadd(name, {"value": "b"}, id="5-5000")
    adopted = cli.json("topics", "adopt", "--stream", name)
    assert (adopted["topic"], adopted["bits"], adopted["created"]) == (name, 13, False)
    end = (5 << 13 | 5000) + 1
    assert [one["end_offset"] for one in adopted["partitions"]] == [end]
    offsets = [one.offset() for one in read_all(moldau, name, 2)]
    assert offsets == [5 << 13 | 1, 5 << 13 | 5000]

    given = cli.json("topics", "adopt", "--stream", name, "--topic", f"{name}-b", "--bits", "20")
    assert given["bits"] == 20


def test_several_streams_and_a_chosen_value(
    moldau: Broker, cli: Cli, store: redis.Redis, name: str
) -> None:
    for number in range(3):
        store.xadd(f"{name}:{number}", {"payload": f"p{number}", "trace": "x"})
    pattern = ("topics", "adopt", "--stream", f"{name}:{{partition}}", "--value", "payload")
    adopted = cli.json(*pattern, "--topic", name, "--partitions", "3")
    assert [one["stream"] for one in adopted["partitions"]] == [f"{name}:{n}" for n in range(3)]
    for number in range(3):
        (message,) = read_all(moldau, name, 1, number)
        assert message.value() == b"p%d" % number

    refused = cli.refused("topics", "adopt", "--stream", f"{name}:0", "--partitions", "2")
    assert f"{name}:0:{{partition}}" in refused


def test_what_is_no_stream_is_refused_and_nothing_is_made(
    cli: Cli, store: redis.Redis, name: str
) -> None:
    missing = cli.refused("topics", "adopt", "--stream", name)
    assert f"there is no stream {name}" in missing
    assert "--create" in missing
    given = cli.refused("topics", "adopt", "--stream", name, "--bits", "12")
    assert f"there is no stream {name}" in given
    assert not store.exists(name)

    store.set(name, "text")
    for words in ((), ("--create",), ("--bits", "12")):
        kind = cli.refused("topics", "adopt", "--stream", name, *words)
        assert f"{name} is a string in Redis, not a stream" in kind
    assert store.get(name) == b"text"
    assert name not in cli("topics", "list").stdout


def test_a_stream_can_be_made_on_request(cli: Cli, store: redis.Redis, name: str) -> None:
    adopted = cli.json("topics", "adopt", "--stream", name, "--create")
    assert (adopted["created"], adopted["bits"]) == (True, 10)
    assert store.xlen(name) == 0
    assert store.type(name) == b"stream"

    half = f"{name}-{{partition}}"
    store.xadd(f"{name}-0", {"value": "a"}, id="5-5000")
    words = ("topics", "adopt", "--stream", half, "--topic", f"{name}-both")
    both = (*words, "--partitions", "2", "--create")
    assert "--bits" in cli.refused(*both)
    assert not store.exists(f"{name}-1")
    assert cli.json(*both, "--bits", "13")["bits"] == 13
    assert store.type(f"{name}-1") == b"stream"


def test_a_topic_of_that_name_is_in_the_way(cli: Cli, store: redis.Redis, name: str) -> None:
    store.xadd(name, {"value": "a"})
    cli.json("topics", "create", name)
    exists = cli.refused("topics", "adopt", "--stream", name)
    assert "TOPIC_ALREADY_EXISTS" in exists
    assert "--topic" in exists
    assert cli.json("topics", "adopt", "--stream", name, "--topic", f"{name}-x")["bits"] == 10


def test_a_native_topic_can_be_created_like_any_other(
    cli: Cli, store: redis.Redis, name: str, short_tmp_path: Path
) -> None:
    cli.json("topics", "create", name, "--partitions", "2", "--config", "moldau.storage=native")
    assert store.type(f"moldau:{name}:1") == b"stream"
    (described,) = cli.json("topics", "describe", name)["topics"]
    pattern = "moldau:{topic}:{partition}"
    assert described["native"] == {"stream": pattern, "bits": 10, "value": None, "groups": []}
    elsewhere = cli.json("topics", "describe", name, MOLDAU_RUNTIME_DIR=str(short_tmp_path))
    assert elsewhere["topics"][0]["native"]["groups"] is None, "not this user's broker"


def test_old_entries_are_not_trimmed(start_moldau: Callable[..., Broker]) -> None:
    broker = start_moldau(workers=1, broker={"log.retention.check.interval.ms": "100"})
    cli = Cli(broker)
    with redis.Redis.from_url(broker.store_url) as store:
        store.xadd("old", {"value": "a"}, id="1000-0")
        cli.json("topics", "adopt", "--stream", "old")
        # A topic of the usual kind beside it shows when retention has been at work.
        native = ("--config", "moldau.storage=native")
        store.xadd("moldau:usual:0", {"value": "a"}, id="1000-0")
        cli.json("topics", "create", "usual", "--partitions", "1", *native)
        wait_until(lambda: store.xlen("moldau:usual:0") == 0, 30, "retention did its work")
        assert store.xlen("old") == 1


def test_no_broker_there_is_one_clear_line(cli: Cli) -> None:
    message = cli.refused("topics", "adopt", "--stream", "s", "--bootstrap", "127.0.0.1:1")
    assert "127.0.0.1:1" in message
    assert len(message.splitlines()) == 1
