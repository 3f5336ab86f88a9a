"""The Redis user of the documentation has all the rights that a broker needs, and no others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import redis
from confluent_kafka import Consumer, Producer

from tests.support.brokers.moldau_cli import OperatorCli
from tests.support.brokers.running import ROOT, Broker
from tests.support.stores.redis_server import RedisServer

PASSWORD = "few-rights"
STREAM, ADOPTED = "sensors:raw", "sensors-raw"


@pytest.fixture
def url(server: RedisServer) -> Iterator[str]:
    """URL of the user that the page makes, who may use one stream of an application too."""
    page = (ROOT / "ops/docs/how-to/redis.md").read_text()
    found = re.search(r"^ACL SETUSER moldau .*$", page, re.M)
    assert found is not None
    streams = f"~{STREAM} ~{{{STREAM}}}:*"
    words = found[0].replace("PASSWORD", PASSWORD).replace("resetchannels", streams)
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command(*words.split())
        admin.execute_command("ACL", "LOG", "RESET")
        yield server.url.replace("redis://", f"redis://moldau:{PASSWORD}@")


def denied(server: RedisServer) -> list[str]:
    with redis.Redis.from_url(server.url) as admin:
        return [f"{one['context']} {one['object']}" for one in admin.acl_log()]


def run_each(cli: OperatorCli, commands: tuple[tuple[str, ...], ...]) -> None:
    for words in commands:
        done = cli(*words)
        assert done.returncode == 0, (words, done.stderr)


def use_everything(broker: Broker) -> None:
    cli = OperatorCli(broker)
    before: tuple[tuple[str, ...], ...] = (
        ("topics", "create", "plain", "--partitions", "2"),
        ("topics", "create", "compacted", "--config", "cleanup.policy=compact"),
        ("topics", "adopt", "--stream", STREAM),
        ("users", "add", "alice", "--generate"),
        ("acls", "add", "--user", "alice", "--producer", "--topic", "plain"),
        ("quotas", "set", "--user", "alice", "--producer-byte-rate", "1mb"),
        ("users", "remove", "alice"),
        ("acls", "remove", "--all", "--yes"),
    )
    run_each(cli, before)
    client = {"bootstrap.servers": broker.bootstrap, "log_level": "0"}
    producer = Producer({**client, "transactional.id": "t", "enable.idempotence": "true"})
    producer.init_transactions(30)
    for commits in (True, False):
        producer.begin_transaction()
        for topic in ("plain", "compacted"):
            producer.produce(topic, b"value", b"key")
        producer.flush(30)
        if commits:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    native = Producer(client)
    native.produce(ADOPTED, b"value")
    assert native.flush(30) == 0
    consumer = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["plain", ADOPTED])
    read: set[str | None] = set()
    while read != {"plain", ADOPTED}:
        message = consumer.poll(30)
        assert message is not None
        read.add(message.topic())
    consumer.commit(asynchronous=False)
    consumer.close()
    after: tuple[tuple[str, ...], ...] = (
        ("topics", "describe", "plain", ADOPTED),
        ("groups", "describe", "g"),
        ("groups", "delete", "g"),
        ("transactions", "list"),
        ("topics", "delete", "plain", "--yes"),
    )
    run_each(cli, after)


def test_a_broker_lives_with_it(
    start_moldau: Callable[..., Broker], server: RedisServer, url: str
) -> None:
    with redis.Redis.from_url(server.url) as admin:
        admin.xadd(STREAM, {"temperature": "21"})
    configs = {"log.cleaner.backoff.ms": 100, "log.retention.check.interval.ms": 200,
               "authorizer.class.name": "standard",
               "super.users": "User:ANONYMOUS"}  # fmt: skip
    broker = start_moldau(workers=2, redis=url, broker=configs)
    use_everything(broker)
    worker = broker.kill("worker", 0)
    broker.wait_restarted("worker", 0, worker)
    assert broker.stop() == 0
    again = start_moldau(workers=2, redis=url, broker=configs)
    assert again.stop() == 0
    # redis-py introduces itself to newer servers, and does without.
    assert [one for one in denied(server) if "client|setinfo" not in one] == []
