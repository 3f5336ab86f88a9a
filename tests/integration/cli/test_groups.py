"""`moldau groups` against a running broker, with confluent-kafka as the other side."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from moldau.broker.placement import owner_of
from moldau.ops.client import GROUP, Cluster
from moldau.ops.operations.groups import find_group
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.group import RawMember, coordinator_port

FIRST_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z; record n of a partition is n seconds later
RECORDS = (10, 20, 30)  # in partitions 0, 1, 2
IDENTITY = re.compile(r"cgp_[0-9A-HJKMNP-TV-Z]{26}")
_names = (f"cli-groups-{os.getpid()}-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def admin(moldau: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": moldau.bootstrap})


@pytest.fixture(scope="module")
def topic(moldau: Broker, admin: AdminClient) -> str:
    """Three partitions with 10, 20 and 30 records, one a second."""
    name = next(_names)
    admin.create_topics([NewTopic(name, 3)])[name].result(10)
    producer = Producer({"bootstrap.servers": moldau.bootstrap})
    for partition, count in enumerate(RECORDS):
        for number in range(count):
            producer.produce(name, b"v", partition=partition, timestamp=FIRST_MS + number * 1000)
    assert producer.flush(10) == 0
    return name


@pytest.fixture
def group() -> str:
    return next(_names)


@contextlib.contextmanager
def consumer(moldau: Broker, group: str, **settings: Any) -> Iterator[Consumer]:
    made = Consumer(
        {
            "bootstrap.servers": moldau.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **settings,
        }
    )
    try:
        yield made
    finally:
        made.close()


def commit(moldau: Broker, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commit as a simple consumer, which does not join."""
    with consumer(moldau, group) as simple:
        places = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
        simple.commit(offsets=places, asynchronous=False)


def committed(admin: AdminClient, group: str) -> dict[tuple[str, int], int]:
    """What another client reads."""
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    places = asked[group].result(10).topic_partitions
    return {(one.topic, one.partition): one.offset for one in places}


class Active(NamedTuple):
    group: str
    members: list[Consumer]


@pytest.fixture(scope="module")
def active(moldau: Broker, topic: str) -> Iterator[Active]:
    """A group of two members that have committed offset 4 of partition 0 and all of partition 1."""
    name = next(_names)
    settings = {"auto.offset.reset": "earliest"}
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(consumer(moldau, name, **settings, **{"client.id": client_id}))
            for client_id in ("reader-a", "reader-b")
        ]
        for member in members:
            member.subscribe([topic])

        def is_shared() -> bool:
            for member in members:
                member.poll(0.05)
            owned = [len(member.assignment()) for member in members]
            return sorted(owned) == [1, 2]

        wait_until(is_shared, 30, "both have partitions")
        for member in members:
            mine = {place.partition for place in member.assignment()}
            offsets = [
                TopicPartition(topic, number, offset)
                for number, offset in ((0, 4), (1, RECORDS[1]))
                if number in mine
            ]
            if offsets:
                member.commit(offsets=offsets, asynchronous=False)
        yield Active(name, members)


def test_describe_shows_members_assignment_offsets_and_lag(
    cli: Cli, admin: AdminClient, active: Active, topic: str
) -> None:
    (described,) = cli.json("groups", "describe", active.group)["groups"]
    seen = admin.describe_consumer_groups([active.group])[active.group].result(10)
    assert described["state"] == "Stable"
    assert described["protocol_type"] == "consumer"
    assert described["protocol"] == seen.partition_assignor == "range"
    assert described["coordinator"]["id"] == seen.coordinator.id
    assert described["coordinator"]["address"] == f"{seen.coordinator.host}:{seen.coordinator.port}"
    assert IDENTITY.fullmatch(described["identity"])
    assert described["generation"] >= 1

    assert [one["client_id"] for one in described["members"]] == ["reader-a", "reader-b"]
    by_id = {one.member_id: one for one in seen.members}
    for member, real in zip(described["members"], active.members, strict=True):
        assert member["assignment"] == {topic: [one.partition for one in real.assignment()]}
        assert member["host"] == by_id[member["member_id"]].host.removeprefix("/") == "127.0.0.1"

    numbers = [
        (one["partition"], one["committed_offset"], one["end_offset"], one["lag"])
        for one in described["partitions"]
    ]
    assert numbers == [(0, 4, 10, 6), (1, 20, 20, 0), (2, None, 30, None)]
    assert described["total_lag"] == 6
    owners = {one["partition"]: one["client_id"] for one in described["partitions"]}
    for client_id, real in zip(("reader-a", "reader-b"), active.members, strict=True):
        assert all(owners[place.partition] == client_id for place in real.assignment())


def test_the_table_says_the_same_and_cuts_nothing_short(
    cli: Cli, active: Active, topic: str
) -> None:
    (described,) = cli.json("groups", "describe", active.group)["groups"]
    done = cli("groups", "describe", active.group, COLUMNS="20")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["identity", described["identity"]] in rows
    assert ["total", "lag", "6"] in rows
    first = described["partitions"][0]
    assert [topic, "0", "4", "10", "6", first["client_id"], first["member_id"]] in rows


def test_without_the_store_at_hand_only_identity_and_generation_are_missing(
    cli: Cli, active: Active, topic: str
) -> None:
    elsewhere = {"MOLDAU_RUNTIME_DIR": "/nonexistent"}
    (described,) = cli.json("groups", "describe", active.group, **elsewhere)["groups"]
    assert (described["identity"], described["generation"]) == (None, None)
    assert described["total_lag"] == 6


def test_an_active_group_is_left_alone(
    cli: Cli, admin: AdminClient, active: Active, topic: str
) -> None:
    before = committed(admin, active.group)
    for mode in ("--dry-run", "--execute"):
        refused = cli.refused(
            "groups", "reset-offsets", active.group, "--all-topics", "--to-earliest", mode
        )
        assert "Stable" in refused
        assert "stop its consumers" in refused
    assert committed(admin, active.group) == before
    refused = cli.refused("groups", "delete", active.group)
    assert "NON_EMPTY_GROUP" in refused
    assert "stop its consumers" in refused


def test_groups_of_every_worker_are_listed(
    moldau: Broker, cli: Cli, admin: AdminClient, active: Active, topic: str
) -> None:
    mine: dict[int, str] = {}
    while len(mine) < 2:
        name = next(_names)
        mine[owner_of(name, 2)] = name
    for name in mine.values():
        commit(moldau, name, topic, {0: 1})
    listed = {one["group"]: one for one in cli.json("groups", "list")["groups"]}
    assert {listed[name]["coordinator"]["id"]: name for name in mine.values()} == mine
    assert listed[active.group]["state"] == "Stable"
    others = admin.list_consumer_groups().result().valid
    assert set(listed) == {one.group_id for one in others}
    empty = {one["group"] for one in cli.json("groups", "list", "--state", "Empty")["groups"]}
    assert set(mine.values()) <= empty
    assert active.group not in empty


def test_reset_plans_and_only_execute_commits(
    moldau: Broker, cli: Cli, admin: AdminClient, group: str, topic: str
) -> None:
    start = {0: 4, 1: 15}
    commit(moldau, group, topic, start)
    reset = ("groups", "reset-offsets", group)
    at_five_seconds = ("--to-datetime", "2026-01-01T01:00:04.500+01:00")
    plans = {
        ("--all-topics", "--to-earliest"): {0: (4, 0), 1: (15, 0)},
        ("--topic", topic, *at_five_seconds): {0: (4, 5), 1: (15, 5), 2: (None, 5)},
        ("--topic", f"{topic}:1", "--shift-by", "-100", "--dry-run"): {1: (15, 0)},
    }
    for words, expected in plans.items():
        plan = cli.json(*reset, *words)
        assert plan["executed"] is False
        moves = {one["partition"]: (one["before"], one["after"]) for one in plan["partitions"]}
        assert moves == expected
    assert committed(admin, group) == {(topic, number): at for number, at in start.items()}

    done = cli(*reset, "--all-topics", "--shift-by", "-3", "--execute")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [topic, "0", "4", "1", "0", "10", "9"] in rows
    assert committed(admin, group) == {(topic, 0): 1, (topic, 1): 12}

    late = cli.json(*reset, "--topic", topic, "--to-datetime", "2026-01-01T00:00:15", "--execute")
    assert late["executed"] is True
    assert committed(admin, group) == {(topic, 0): 10, (topic, 1): 15, (topic, 2): 15}

    cli.json(*reset, "--topic", f"{topic}:0,1", "--to-latest", "--execute")
    cut = cli.json(*reset, "--topic", f"{topic}:2", "--to-offset", "99", "--execute")
    assert cut["partitions"][0]["cut_to_log"] is True
    assert committed(admin, group) == {(topic, 0): 10, (topic, 1): 20, (topic, 2): 30}


def test_a_consumer_goes_on_where_a_new_group_was_put(
    moldau: Broker, cli: Cli, group: str, topic: str
) -> None:
    put = ("--topic", f"{topic}:2", "--to-offset", "27", "--execute")
    cli.json("groups", "reset-offsets", group, *put)
    with consumer(moldau, group) as reader:
        reader.assign([TopicPartition(topic, 2)])
        messages = reader.consume(3, timeout=20)
    assert [message.offset() for message in messages] == [27, 28, 29]


def test_a_plan_that_cannot_be_made_says_why(
    moldau: Broker, cli: Cli, admin: AdminClient, group: str, topic: str
) -> None:
    reset = ("groups", "reset-offsets", group)
    assert "--topic" in cli.refused(*reset, "--all-topics", "--to-latest", "--execute")
    commit(moldau, group, topic, {0: 4})
    shift = cli.refused(*reset, "--topic", topic, "--shift-by", "1", "--execute")
    assert f"{topic}-1" in shift
    assert "no partition 7" in cli.refused(*reset, "--topic", f"{topic}:0,7", "--to-latest")
    missing = cli.refused(*reset, "--topic", topic + "-not", "--to-latest", "--execute")
    assert "moldau topics list" in missing
    assert committed(admin, group) == {(topic, 0): 4}
    assert topic + "-not" not in admin.list_topics(timeout=10).topics


def test_a_deleted_group_is_gone(
    moldau: Broker, cli: Cli, admin: AdminClient, group: str, topic: str
) -> None:
    commit(moldau, group, topic, {0: 4})
    done = cli("groups", "delete", group, group + "-not")
    assert (done.returncode, done.stdout) == (1, f"{group} deleted\n")
    assert f"group {group}-not" in done.stderr
    assert "moldau groups list" in done.stderr
    assert committed(admin, group) == {}
    assert "GROUP_ID_NOT_FOUND" in cli.refused("groups", "describe", group)


def test_odd_ids_and_other_protocols_are_shown_as_they_are(
    moldau: Broker, cli: Cli, group: str
) -> None:
    odd = f"{group}: [bold]\x1b[31mé"
    with RawMember(
        coordinator_port(moldau, odd), odd, protocol_type="connect", protocols={"v1": b"x"}
    ) as member:
        member.enter(b"\x00\x01theirs")
        (described,) = cli.json("groups", "describe", odd)["groups"]
        assert described["group"] == odd
        assert described["protocol_type"] == "connect"
        assert IDENTITY.fullmatch(described["identity"])
        assert [one["assignment"] for one in described["members"]] == [None]
        text = cli("groups", "describe", odd).stdout
        assert "\x1b" not in text
        assert f"{group}: [bold]\\x1b[31mé" in text
        member.leave()


def test_a_wrong_coordinator_is_left_for_the_right_one(
    moldau: Broker, group: str, topic: str
) -> None:
    commit(moldau, group, topic, {0: 4})
    with Cluster([("127.0.0.1", moldau.port)]) as cluster:
        right = cluster.coordinator(group)
        (wrong,) = (node for node in cluster.nodes() if node != right)
        cluster._coordinators[GROUP, group] = wrong
        found = find_group(cluster, group)
        assert found is not None
        assert found.group_state == "Empty"
        assert cluster.coordinator(group) == right
