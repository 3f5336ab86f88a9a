"""The console in a real browser: what is live, what is sent, and who can use it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import redis
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import Browser, Page, expect

from tests.support.brokers.running import Broker, wait_until
from tests.support.pages.browser import Watched, violations

EVIL = '<img src=x onerror="document.title=1">'


def create(broker: Broker, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)


def produce(broker: Broker, topic: str, values: list[str], **facts: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for value in values:
        producer.produce(topic, value, **facts)
    assert producer.flush(30) == 0


@contextmanager
def member(broker: Broker, group: str, topic: str, client: str) -> Iterator[Consumer]:
    """A consumer that is polled in the background."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "client.id": client,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
        }
    )
    ended, assigned = threading.Event(), threading.Event()
    # Not `consumer.assignment()`: it holds the interpreter while it waits for the polling thread.
    consumer.subscribe([topic], on_assign=lambda *_: assigned.set())

    def poll() -> None:
        while not ended.is_set():
            consumer.poll(0.05)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        assert assigned.wait(60), "it is no member"
        yield consumer
    finally:
        ended.set()
        thread.join()
        consumer.close()


def test_a_member_that_joins_is_seen_in_the_film(page: Page, broker: Broker) -> None:
    create(broker, "filmed", 2)
    with member(broker, "crew", "filmed", "first-client"):
        page.goto("/groups/crew")
        legend = page.locator(".legend")
        expect(legend).to_contain_text("first-client")
        assert "second-client" not in legend.inner_text()
        with member(broker, "crew", "filmed", "second-client"):
            expect(legend).to_contain_text("second-client")  # without a reload
            expect(page.locator("rect.film-stop").first).to_be_attached()
            page.get_by_role("link", name="member", exact=True).click()
            expect(page.locator(".film-names")).to_contain_text("second-client")
        page.get_by_text("As a list").click()
        expect(page.locator(".film table")).to_contain_text("joined")


def test_a_record_is_sent_read_and_sent_again(page: Page, broker: Broker) -> None:
    create(broker, "mailed")
    page.goto("/topics/mailed/send")
    page.locator("[name=key]").fill("k1")
    page.get_by_label("no key").uncheck()
    page.locator("[name=headers]").fill("from: browser")
    page.locator("[name=value]").fill('{"n": 1}')
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status").first).to_contain_text("sent: partition 0, offset 0")
    page.get_by_role("link", name="again").click()
    expect(page.locator("[name=value]")).to_have_value('{"n": 1}')
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status").first).to_contain_text("offset 1")
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["mailed"])
    try:
        for _ in range(2):
            message = consumer.poll(60)
            assert message is not None
            assert (message.key(), message.value()) == (b"k1", b'{"n": 1}')
            assert message.headers() == [("from", b"browser")]
    finally:
        consumer.close()


def test_the_live_tail_shows_a_burst_or_says_what_it_skipped(page: Page, broker: Broker) -> None:
    create(broker, "bursting")
    page.goto("/topics/bursting/records")
    page.get_by_role("button", name="Live").click()
    expect(page.locator("#live-state")).to_contain_text("live")
    produce(broker, "bursting", [f"value-{number}" for number in range(3000)])
    # Every record is counted, whether it is shown or not; none is counted twice.
    expect(page.locator("#live-state")).to_contain_text("live: 3000 new records")
    produce(broker, "bursting", ["the last one"])
    expect(page.locator("#live-state")).to_contain_text("live: 3001 new records")
    expect(page.locator("#rows")).to_contain_text("the last one")
    shown = page.locator("#rows [data-live]").count()
    assert 1 <= shown <= 500, "a page does not grow without end"
    match = re.search(r"(\d+) shown, (\d+) not", page.locator("#live-state").inner_text())
    assert match is not None
    assert (int(match[1]), int(match[2])) == (shown, 3001 - shown)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#live-state")).to_contain_text("stopped")


def test_offsets_are_reset_after_a_look_at_the_plan(page: Page, broker: Broker) -> None:
    create(broker, "resettable")
    produce(broker, "resettable", ["a", "b", "c"])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = ConsumerGroupTopicPartitions("resetting", [TopicPartition("resettable", 0)])

    def is_committed() -> bool:
        found = admin.list_consumer_group_offsets([wanted])["resetting"].result(30)
        return bool(found.topic_partitions[0].offset == 3)

    with member(broker, "resetting", "resettable", "c"):
        wait_until(is_committed, 60, "it has committed")
    page.goto("/groups/resetting")
    page.get_by_text("Reset offsets").click()
    page.locator("[name=goal]").select_option("offset")
    page.locator("[name=value]").fill("1")
    page.get_by_role("button", name="Show what would change").click()
    expect(page.locator("main")).to_contain_text("Nothing has changed yet")
    page.get_by_role("button", name="Commit these offsets").click()
    expect(page.get_by_role("status")).to_contain_text("1 offsets were reset")
    found = admin.list_consumer_group_offsets([wanted])["resetting"].result(30)
    assert found.topic_partitions[0].offset == 1


def shows(page: Page, path: str, text: str) -> bool:
    page.goto(path)
    return text in page.locator("main").inner_text()


def test_what_clients_write_does_nothing(page: Page, broker: Broker) -> None:
    create(broker, "hostile")
    produce(broker, "hostile", [EVIL], key=EVIL, headers=[(EVIL, EVIL.encode())])
    with member(broker, EVIL, "hostile", EVIL):
        for path in ("/topics/hostile/records", "/groups", "/topics/hostile"):
            # Lists of groups are a moment old.
            wait_until(partial(shows, page, path, "onerror"), 30, f"{path} shows it")
            assert page.locator("main img").count() == 0
        page.get_by_role("link", name=EVIL).first.click()
        expect(page.locator(".legend")).to_contain_text("onerror")
        assert page.locator("main img").count() == 0
    page.goto("/topics/hostile/records")
    page.get_by_role("button", name="Live").click()
    expect(page.locator("#live-state")).to_contain_text("live")
    produce(broker, "hostile", ["second " + EVIL])
    expect(page.locator("#rows")).to_contain_text("second")
    assert page.locator("main img").count() == 0
    assert page.title().startswith("Records of hostile")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_usable_by_all(chromium: Browser, broker: Broker, scheme: str) -> None:
    """Pages work by keyboard and with screen readers, in both themes, on the width of a phone."""
    produce(broker, "usable", ['{"a": 1}', "text"])
    with redis.Redis.from_url(broker.store_url) as store:
        store.xadd("usable-stream", {"room": "kitchen", "celsius": "21.5"})
        if scheme == "light":
            store.xgroup_create("usable-stream", "dashboard", "0")
        store.xreadgroup("dashboard", "screen", {"usable-stream": ">"})
    watched = Watched(chromium, broker, color_scheme=scheme, viewport={"width": 390, "height": 800})
    page = watched.page
    page.goto("/adopt?stream=usable-stream")
    if scheme == "light":
        page.get_by_role("button", name="Make it the topic").click()
        expect(page.get_by_role("status")).to_contain_text("its data is as it was")
    with member(broker, "users", "usable", "u"):
        for path in (
            "/",
            "/topics",
            "/topics/usable",
            "/topics/usable/records",
            "/topics/usable/send",
            "/groups",
            "/groups/users",
            "/topics/usable-stream",
            "/adopt?stream=usable-stream",
            "/adopt?stream=usable-stream&topic=another",
            "/topics/none",
            "/transactions",
            "/access",
        ):
            page.goto(path)
            if path == "/groups/users":
                expect(page.locator(".legend")).to_contain_text("u (127.0.0.1)")
            assert violations(page) == [], path
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390, f"{path} is {width} wide"
    page.goto("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    watched.finish()


def test_tables_are_there_without_a_script(chromium: Browser, broker: Broker) -> None:
    watched = Watched(chromium, broker, java_script_enabled=False)
    watched.page.goto("/topics")
    expect(watched.page.locator("table")).to_be_visible()
    watched.page.goto("/")
    expect(watched.page.locator("main")).to_contain_text("worker 0")
    watched.finish()
