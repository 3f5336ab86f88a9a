"""How many modules of the HTTP process make the page of a group: a reader has to open them all."""

from __future__ import annotations

import time

from confluent_kafka import Consumer

from tests.support.brokers import walks
from tests.support.brokers.running import (
    free_ports,
    remove_dir,
    running_broker,
    short_temp_dir,
    wait_until,
)
from tests.support.pages.console import Pages
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient

SNAPSHOT_S = 1.0  # after which the page asks the processes again


def test_the_page_of_a_group() -> None:
    """It has one member and a lag; somebody has looked at it before."""
    reports = short_temp_dir()
    address = f"127.0.0.1:{free_ports(1)}"
    with running_broker(workers=2, http=address, env=walks.environment(reports)) as broker:
        wait_until(lambda: broker.processes("http")[0]["state"] == "running", 60, "it serves")
        with RawClient(broker.port) as client:
            create_topic(client, "read", partitions=2)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
        consumer.subscribe(["read"])
        wait_until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), 60, "joined")
        consumer.commit(offsets=[*consumer.position(consumer.assignment())])
        browser = Pages(broker)
        assert "readers" in browser.get("/groups/readers")
        walk = walks.walk(
            broker,
            reports,
            lambda: browser.get("/groups/readers"),
            before=lambda: time.sleep(SNAPSHOT_S),
            roles=("http",),
        )
        consumer.close()
    remove_dir(reports)
    walks.hold(walk, at_most=24)
