"""`moldau produce` and `moldau consume`: records by standard input and output."""

from __future__ import annotations

import json
import subprocess

import pytest
from confluent_kafka import Consumer, Producer

from moldau.ops.client.partitioning import partition_of
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import MOLDAU, Broker, wait_until


def produce(cli: Cli, *words: str, typed: str) -> None:
    done = cli("produce", *words, typed=typed)
    assert (done.returncode, done.stderr) == (0, "")


def consumed(cli: Cli, *words: str) -> list[str]:
    done = cli("consume", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_lines_come_out_as_they_went_in(cli: Cli, name: str) -> None:
    produce(cli, name, typed="one\ntwo\n\nlast without an end")
    assert consumed(cli, name) == ["one", "two", "", "last without an end"]


def test_a_real_client_reads_what_was_sent_and_the_reverse(
    cli: Cli, moldau: Broker, name: str
) -> None:
    cli("topics", "create", name, "--partitions", "3")
    produce(cli, name, "--key-separator", ":", "--header", "from=shell", typed="a:1\nb:2\nc:3\n")
    consumer = Consumer(
        {
            "bootstrap.servers": moldau.bootstrap,
            "group.id": f"{name}-readers",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([name])
    try:
        for _ in range(3):
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            assert message.headers() == [("from", b"shell")]
            key = message.key()
            assert key is not None
            assert message.partition() == partition_of(bytes(key), 0, 3)
    finally:
        consumer.close()
    producer = Producer({"bootstrap.servers": moldau.bootstrap, "compression.type": "zstd"})
    producer.produce(name, b"\xff", b"k", partition=2, headers=[("h", "v")])
    assert producer.flush(30) == 0
    (*_, last) = consumed(cli, name, "--partition", "2", "--json")
    found = json.loads(last)
    assert (found["key"], found["value_base64"], found["headers"]) == ("k", "/w==", [["h", "v"]])


def test_json_goes_through_unchanged(cli: Cli, name: str) -> None:
    lines = [
        {"key": "k", "value": {"a": [1, None]}, "headers": {"h": "x"}, "timestamp": 1000},
        {"key": None, "value_base64": "AP8=", "headers": [["h", None]], "timestamp": 2000},
        {"key_base64": "/w==", "value": None, "timestamp": 3000},
    ]
    produce(cli, name, "--json", typed="\n".join(map(json.dumps, lines)))
    first, second, third = map(json.loads, consumed(cli, name, "--json"))
    assert (first["key"], first["value"], first["headers"]) == ("k", '{"a":[1,null]}', [["h", "x"]])
    assert (second["key"], second["value_base64"], second["headers"]) == (
        None,
        "AP8=",
        [["h", None]],
    )
    assert (third["key_base64"], third["value"], third["timestamp"]) == ("/w==", None, 3000)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (("--from", "beginning", "--count", "2"), ["0", "1"]),
        (("--from", "7"), ["7", "8", "9"]),
        (("--from=-2",), ["8", "9"]),
        (("--from", "end"), []),
        (("--from", "1970-01-01T00:00:05Z", "--count", "1"), ["5"]),
        (("--keys", "--from", "9"), ["\t9"]),
    ],
)
def test_where_to_begin_and_end(
    cli: Cli, name: str, where: tuple[str, ...], expected: list[str]
) -> None:
    lines = [json.dumps({"value": str(n), "timestamp": n * 1000}) for n in range(10)]
    produce(cli, name, "--json", typed="\n".join(lines))
    assert consumed(cli, name, *where) == expected


def test_records_of_aborted_transactions_are_left_out(cli: Cli, moldau: Broker, name: str) -> None:
    producer = Producer({"bootstrap.servers": moldau.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    for value, ends in (
        ("kept", producer.commit_transaction),
        ("gone", producer.abort_transaction),
    ):
        producer.begin_transaction()
        producer.produce(name, value)
        producer.flush(30)
        ends(30)
    assert consumed(cli, name) == ["kept"]
    assert consumed(cli, name, "--uncommitted") == ["kept", "gone"]


def test_members_of_a_group_share_the_partitions_and_commit(
    cli: Cli, moldau: Broker, name: str
) -> None:
    cli("topics", "create", name, "--partitions", "2")
    produce(cli, name, "--partition", "0", typed="a\nb\n")
    produce(cli, name, "--partition", "1", typed="c\n")
    group = f"{name}-group"
    assert sorted(consumed(cli, name, "--group", group)) == ["a", "b", "c"]
    produce(cli, name, "--partition", "1", typed="d\n")
    assert consumed(cli, name, "--group", group) == ["d"]
    assert consumed(cli, name, "--group", group) == []


def test_following_prints_what_comes_later(cli: Cli, moldau: Broker, name: str) -> None:
    produce(cli, name, typed="before\n")
    following = subprocess.Popen(
        [*MOLDAU, "consume", name, "--follow", "--count", "2"],
        env=cli.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    assert following.stdout.readline() == "before\n"
    produce(cli, name, typed="after\n")
    assert following.stdout.readline() == "after\n"
    wait_until(lambda: following.poll() == 0, 30, "it has printed two records")
    following.stdout.close()


def test_faults_have_a_cause_and_a_remedy(cli: Cli, name: str) -> None:
    assert "there is no such topic" in cli.refused("consume", name)
    cli("topics", "create", name)
    assert "has partitions 0 to 0" in cli.refused("produce", name, "--partition", "7", typed="x")
    assert "not a record" in cli.refused("produce", name, "--json", typed="{")
    assert "no ':' in the line 'x'" in cli.refused(
        "produce", name, "--key-separator", ":", typed="x"
    )
    assert "ends before offset 5" in cli.refused("consume", name, "--from", "5", "--follow")
