"""`moldau transactions` against a running broker, with confluent-kafka as the other side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from moldau.broker.placement import owner_of, slot_of
from moldau.broker.store import keys
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker, wait_until

PATIENCE_S = 60.0


@pytest.fixture
def topic(cli: Cli, name: str) -> str:
    cli.json("topics", "create", name, "--partitions", "2")
    return name


def begin(broker: Broker, transactional_id: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    return producer


def write(producer: Producer, topic: str, partition: int, *values: str) -> None:
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def committed_values(broker: Broker, topic: str, partition: int, count: int) -> list[str]:
    """What a read_committed consumer reads from the start: so many, and no more."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"reader-{topic}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        values: list[str] = []

        def is_at_end() -> bool:
            message = consumer.poll(0.1)
            if message is None:
                return False
            if message.error():
                return len(values) >= count
            value = message.value()
            assert value is not None
            values.append(value.decode())
            return False

        wait_until(is_at_end, PATIENCE_S, f"{count} records before the end, {values}")
        return values
    finally:
        consumer.close()


def describe(cli: Cli, transactional_id: str) -> dict[str, Any]:
    (described,) = cli.json("transactions", "describe", transactional_id)["transactions"]
    found: dict[str, Any] = described
    return found


def listed(cli: Cli, *words: str) -> dict[str, str]:
    found = cli.json("transactions", "list", *words)["transactions"]
    return {one["transactional_id"]: one["state"] for one in found}


# --- looking ---


def test_one_is_shown_from_its_begin_to_its_end(
    moldau: Broker, cli: Cli, topic: str, name: str
) -> None:
    producer = begin(moldau, name)
    write(producer, topic, 1, "a", "b")
    document = describe(cli, name)
    partition = {
        "topic": topic,
        "partition": 1,
        "open_from": 0,
        "last_stable_offset": 0,
        "end_offset": 2,
    }
    assert document["partitions"] == [partition]
    assert (document["state"], document["timeout_ms"]) == ("Ongoing", 60_000)
    assert document["producer_id"] >= 0
    assert document["started_ms"] > 0
    assert document["running_ms"] >= 0
    assert document["coordinator"]["id"] == owner_of(name, 2)
    text = cli("transactions", "describe", name).stdout
    rows = [line.split() for line in text.splitlines()]
    assert ["state", "Ongoing"] in rows
    assert [topic, "1", "0", "0", "2"] in rows

    producer.commit_transaction(PATIENCE_S)

    def is_complete() -> bool:
        return bool(describe(cli, name)["state"] == "CompleteCommit")

    wait_until(is_complete, PATIENCE_S, "the marker is written")
    assert describe(cli, name)["started_ms"] is None
    assert committed_values(moldau, topic, 1, 2) == ["a", "b"]


def test_offsets_of_groups_are_places_too(moldau: Broker, cli: Cli, topic: str, name: str) -> None:
    consumer = Consumer({"bootstrap.servers": moldau.bootstrap, "group.id": name})
    producer = begin(moldau, name)
    offsets = [TopicPartition(topic, 0, 1)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_S)
    consumer.close()
    (place,) = describe(cli, name)["partitions"]
    assert (place["topic"], place["partition"]) == ("__consumer_offsets", slot_of(name))
    assert place["end_offset"] is None
    producer.abort_transaction(PATIENCE_S)


def test_ids_of_all_workers_are_listed_and_filtered(
    moldau: Broker, cli: Cli, topic: str, name: str
) -> None:
    ids = [f"{name}.{number}" for number in range(6)]
    assert {owner_of(one, 2) for one in ids} == {0, 1}
    producers = [begin(moldau, one) for one in ids]
    write(producers[0], topic, 0, "a")
    mine = ("--id-pattern", f"{name}[.].*")
    assert listed(cli, *mine) == {ids[0]: "Ongoing"} | dict.fromkeys(ids[1:], "Empty")
    assert listed(cli, *mine, "--state", "ongoing") == {ids[0]: "Ongoing"}
    both = ("--state", "Ongoing", "--state", "Empty")
    assert len(listed(cli, *mine, *both)) == 6
    assert listed(cli, *mine, "--longer-than", "0ms") == {ids[0]: "Ongoing"}
    assert listed(cli, *mine, "--longer-than", "1h") == {}
    producer_id = describe(cli, ids[3])["producer_id"]
    assert listed(cli, "--producer-id", str(producer_id)) == {ids[3]: "Empty"}
    text = cli("transactions", "list", *mine).stdout
    rows = {line.split()[0]: line.split() for line in text.splitlines()}
    assert rows[ids[0]][1:2] + rows[ids[0]][-1:] == [
        "Ongoing",
        f"127.0.0.1:{moldau.port + 1 + owner_of(ids[0], 2)}",
    ]
    producers[0].abort_transaction(PATIENCE_S)


def test_a_router_that_is_the_only_broker_lists_all(start_moldau: Callable[..., Broker]) -> None:
    broker = start_moldau(workers=2, advertise="router")
    ids = [f"routed-{number}" for number in range(4)]
    assert {owner_of(one, 2) for one in ids} == {0, 1}
    cli = Cli(broker)
    cli.json("topics", "create", "t")
    producers = [begin(broker, one) for one in ids]
    for producer in producers:
        write(producer, "t", 0, "a")
    assert listed(cli) == dict.fromkeys(ids, "Ongoing")
    assert cli.json("transactions", "find-hanging") == {"hanging": []}
    assert cli("transactions", "abort", *ids, "--yes").returncode == 0
    assert set(listed(cli, "--state", "Ongoing")) == set()


def test_what_does_not_exist_is_one_clear_line(cli: Cli, name: str) -> None:
    for action in ("describe", "abort"):
        error = cli.refused("transactions", action, name)
        assert f"transactional id {name}: there is no such transactional id" in error
        assert "`moldau transactions list` shows what exists" in error
    error = cli.refused("transactions", "list", "--id-pattern", "(")
    assert "pattern (: this is not a regular expression" in error
    for words in (["--partition", "0"], []):
        error = cli.refused("transactions", "find-hanging", "--topic", name, *words)
        assert "`moldau topics list` shows what exists" in error
    hanging = ("--topic", name, "--partition", "0", "--start-offset", "0")
    assert f"partition {name}-0: there is no such" in cli.refused("transactions", "abort", *hanging)


# --- aborting ---


def test_abort_ends_it_and_fences_its_producer(
    moldau: Broker, cli: Cli, topic: str, name: str
) -> None:
    producer = begin(moldau, name)
    write(producer, topic, 0, "never read")
    assert "not confirmed" in cli.refused("transactions", "abort", name, typed="n\n")
    assert describe(cli, name)["state"] == "Ongoing"

    done = cli("transactions", "abort", name, typed="y\n")
    assert (done.returncode, done.stdout) == (0, f"{name} aborted, its producer is fenced\n")
    document = describe(cli, name)
    assert (document["state"], document["timeout_ms"]) == ("Empty", 60_000)
    with pytest.raises(KafkaException, match=r"(?i)fenced"):
        producer.commit_transaction(PATIENCE_S)
    following = begin(moldau, name)
    write(following, topic, 0, "read")
    following.commit_transaction(PATIENCE_S)
    assert committed_values(moldau, topic, 0, 1) == ["read"]

    assert "no transaction is open" in cli.refused("transactions", "abort", name, "--yes")


# --- hanging ---


@pytest.fixture
def hanging(start_moldau: Callable[..., Broker]) -> tuple[Broker, Producer]:
    """A transaction from offset 2 of t-1 on, which its coordinator has lost; another is known."""
    broker = start_moldau(workers=1)
    Cli(broker).json("topics", "create", "t", "--partitions", "2")
    lost, known = begin(broker, "lost"), begin(broker, "known")
    write(lost, "t", 1, "committed")
    lost.commit_transaction(PATIENCE_S)
    lost.begin_transaction()
    write(lost, "t", 1, "hangs")
    write(known, "t", 0, "ongoing")
    with redis.from_url(broker.store_url) as store:
        slot = slot_of("lost")
        assert store.delete(keys.transaction(slot, "lost")) == 1
        assert store.srem(keys.transactions(slot), keys.escaped("lost")) == 1
    broker.wait_restarted("worker", 0, broker.kill("worker"))
    return broker, known


def test_one_that_no_coordinator_knows_is_found_and_ended(
    hanging: tuple[Broker, Producer],
) -> None:
    broker, known = hanging
    cli = Cli(broker)
    assert listed(cli) == {"known": "Ongoing"}
    (found,) = cli.json("transactions", "find-hanging")["hanging"]
    place = (found["topic"], found["partition"], found["start_offset"])
    assert place == ("t", 1, 2)  # after the record and the marker of the one before it
    assert cli.json("transactions", "find-hanging", "--longer-than", "1h") == {"hanging": []}
    there = ("--topic", "t", "--partition", "1")
    assert len(cli.json("transactions", "find-hanging", *there)["hanging"]) == 1
    elsewhere = ("--topic", "t", "--partition", "0")
    assert cli("transactions", "find-hanging", *elsewhere).stdout == "no transaction hangs\n"
    text = cli("transactions", "find-hanging").stdout
    assert "moldau transactions abort --topic t --partition 1 --start-offset 2" in text

    refused = cli.refused("transactions", "abort", *elsewhere, "--start-offset", "0", "--yes")
    assert "abort known`" in refused
    refused = cli.refused("transactions", "abort", *there, "--start-offset", "0", "--yes")
    assert "open ones begin at 2" in refused
    question = cli.refused("transactions", "abort", *there, "--start-offset", "2", typed="n\n")
    assert f"Abort the transaction of producer {found['producer_id']} in t-1?" in question

    assert committed_values(broker, "t", 1, 1) == ["committed"]
    done = cli.json("transactions", "abort", *there, "--start-offset", "2", "--yes")
    assert [one["start_offset"] for one in done["aborted"]] == [2]
    assert cli.json("transactions", "find-hanging") == {"hanging": []}

    following = begin(broker, "following")
    write(following, "t", 1, "read")
    following.commit_transaction(PATIENCE_S)
    assert committed_values(broker, "t", 1, 2) == ["committed", "read"]
    known.commit_transaction(PATIENCE_S)
    assert committed_values(broker, "t", 0, 1) == ["ongoing"]
