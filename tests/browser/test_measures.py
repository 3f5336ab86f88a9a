"""What the members of a group measure, in a real browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from playwright.sync_api import Browser, expect

from tests.support.brokers.running import Broker, free_ports, running_broker, wait_until
from tests.support.pages.browser import Watched, violations
from tests.support.raw.client import RawClient
from tests.support.raw.telemetry import subscribe

EVIL = '<img src=x onerror="document.title=1">'


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"group.initial.rebalance.delay.ms": 10, "moldau.telemetry.enable": "true"}
    http = f"127.0.0.1:{free_ports(1)}"
    with running_broker(workers=2, http=http, broker=settings) as started:
        wait_until(lambda: started.processes("http")[0]["state"] == "running", 60, "it serves")
        with RawClient(started.port) as client:
            assert subscribe(client, "all", {"interval.ms": "500", "metrics": "*"}) == 0
        yield started


@pytest.fixture(scope="module")
def member(broker: Broker) -> Iterator[Consumer]:
    """A member that is polled in the background, with a name that is not nice."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("measured", b"x")
    assert producer.flush(30) == 0
    config = {"bootstrap.servers": broker.bootstrap, "group.id": "measuring", "client.id": EVIL}
    consumer = Consumer({**config, "auto.offset.reset": "earliest"})
    consumer.subscribe(["measured"])
    ended = threading.Event()

    def poll() -> None:
        while not ended.is_set():
            consumer.poll(0.05)

    thread = threading.Thread(target=poll)
    thread.start()
    yield consumer
    ended.set()
    thread.join()
    consumer.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_a_member_measures_comes_by_itself_and_all_of_it_on_demand(
    chromium: Browser, broker: Broker, member: Consumer, scheme: str
) -> None:
    watched = Watched(chromium, broker, color_scheme=scheme, viewport={"width": 390, "height": 800})
    page = watched.page
    page.goto("/groups/measuring")
    table = page.get_by_role("region", name="What members measure")
    # The page is live: whatever it showed first, the first push appears in it.
    expect(table).to_contain_text("confluent-kafka-python", timeout=60_000)
    expect(table).to_contain_text(EVIL)
    expect(table).to_contain_text("%")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    table.get_by_role("link").first.click()
    expect(page.locator("main")).to_contain_text("consumer.poll.idle.ratio.avg")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("main img").count() == 0
    assert page.title().startswith("measuring")
    page.get_by_role("link", name="measuring").click()
    expect(page.locator("h1")).to_have_text("measuring")
    watched.finish()
