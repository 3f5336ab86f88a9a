"""The topic of group events, read by a consumer."""

import json
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from moldau.broker.topics.topics import GROUP_EVENTS
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker, wait_until
from tests.support.pipeline.spark import create_topic, produce


def events_of(broker: Broker, group: str) -> list[dict[str, Any]]:
    """What is written of a group so far, in order."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    found = []
    try:
        if GROUP_EVENTS not in consumer.list_topics(timeout=20).topics:
            return []
        place = TopicPartition(GROUP_EVENTS, 0, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=20)
        consumer.assign([place])
        read = 0
        while read < end:
            message: Any = consumer.poll(20)
            assert message is not None
            read = message.offset() + 1
            event = json.loads(message.value())
            assert abs(message.timestamp()[1] - event["time_ms"]) < 60_000
            if message.key() == group.encode():
                assert event["group"] == group
                found.append(event)
    finally:
        consumer.close()
    return found


def consume(broker: Broker, group: str, topic: str, client: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap, "group.id": group, "client.id": client,
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
            "session.timeout.ms": 6000,
        }
    )  # fmt: skip
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.2) is not None, 30, "a record")
    return consumer


def test_events_of_a_groups_life(start_moldau: Callable[..., Broker]) -> None:
    moldau = start_moldau(workers=2, broker={"group.initial.rebalance.delay.ms": 10})
    create_topic(moldau.bootstrap, "watched", 2)
    produce(moldau.bootstrap, "watched", [(p, i) for p in range(2) for i in range(5)])
    consumer = consume(moldau, "life", "watched", "the-client")
    consumer.commit(offsets=[TopicPartition("watched", 0, 3)], asynchronous=False)
    consumer.close()

    def names() -> list[str]:
        return [event["event"] for event in events_of(moldau, "life")]

    wait_until(lambda: "group_empty" in names(), 30, "its end")
    events = events_of(moldau, "life")
    assert [event["event"] for event in events] == [
        "member_joined", "rebalance_started", "rebalance_completed", "assigned", "member_left",
        "rebalance_started", "group_empty",
    ]  # fmt: skip
    joined, started, completed, assigned, left = events[:5]
    assert joined["client"] == "the-client"
    assert joined["members"] == 1
    assert "joined" in started["reason"]
    assert completed["reason"] == started["reason"]
    assert (completed["generation"], completed["members"]) == (1, 1)
    assert completed["duration_ms"] >= 10
    assert left["member"] == joined["member"]
    (owner,) = assigned["owners"]
    assert (owner["client"], owner["topics"]) == ("the-client", {"watched": "0-1"})

    admin = AdminClient({"bootstrap.servers": moldau.bootstrap})
    admin.delete_consumer_groups(["life"])["life"].result(20)
    wait_until(lambda: names()[-1] == "group_deleted", 30, "its deletion")


def test_commits_are_written_when_a_worker_stops(start_moldau: Callable[..., Broker]) -> None:
    moldau = start_moldau(workers=1, broker={"group.initial.rebalance.delay.ms": 10})
    create_topic(moldau.bootstrap, "counted", 2)
    produce(moldau.bootstrap, "counted", [(p, i) for p in range(2) for i in range(5)])
    consumer = consume(moldau, "counting", "counted", "c")
    for offset in (1, 2, 3):
        consumer.commit(offsets=[TopicPartition("counted", 1, offset)], asynchronous=False)
    consumer.close()
    moldau.stop()
    again = start_moldau(workers=1, data_dir=moldau.data_dir)
    (commits,) = [e for e in events_of(again, "counting") if e["event"] == "commits"]
    assert commits["count"] == 3
    assert commits["offsets"] == {"counted": [[1, 3]]}


def test_the_topic_is_internal_and_bounded(start_moldau: Callable[..., Broker]) -> None:
    moldau = start_moldau(workers=1, broker={"group.initial.rebalance.delay.ms": 10})
    create_topic(moldau.bootstrap, "any", 1)
    produce(moldau.bootstrap, "any", [(0, 0)])
    consume(moldau, "g", "any", "c").close()
    wait_until(lambda: bool(events_of(moldau, "g")), 30, "events")
    cli = Cli(moldau)
    described = cli.json("topics", "describe", GROUP_EVENTS)["topics"][0]
    assert described["internal"] is True
    configs = {one["name"]: one["value"] for one in described["configs"]}
    assert configs["cleanup.policy"] == "delete"
    assert int(configs["retention.ms"]) > 0
    assert int(configs["retention.bytes"]) > 0


def test_it_can_be_turned_off(start_moldau: Callable[..., Broker]) -> None:
    moldau = start_moldau(
        workers=1,
        broker={"group.initial.rebalance.delay.ms": 10, "moldau.group.events.enable": "false"},
    )
    create_topic(moldau.bootstrap, "any", 1)
    produce(moldau.bootstrap, "any", [(0, 0)])
    consume(moldau, "g", "any", "c").close()
    moldau.stop()
    again = start_moldau(workers=1, data_dir=moldau.data_dir)
    names = [event["event"] for event in events_of(again, "g")]
    assert "member_joined" not in names  # only of what happened since
