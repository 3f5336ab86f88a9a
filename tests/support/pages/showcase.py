"""Takes pictures of the console of a broker that is in use.

    python -m tests.support.pages.showcase DIRECTORY

Topics of a shop, consumers that join, leave and fall behind, a native topic. The picture in the
project's README is `group-light.png`.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from playwright.sync_api import Browser, expect, sync_playwright

from tests.support.brokers.running import Broker, free_ports, running_broker, wait_until
from tests.support.pages.browser import CHROMIUM, Watched

TOPICS = {"orders": 6, "payments": 3, "clicks": 4, "inventory": 2, "emails": 1}
RATES = {"orders": 120, "payments": 40, "clicks": 400, "inventory": 15, "emails": 8}
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "native": "/topics/sensors",
    "records": "/topics/orders/records",
    "send": "/topics/orders/send",
    "groups": "/groups",
    "group": "/groups/billing",
    "adopt": "/adopt?stream=weather:raw",
    "transactions": "/transactions",
    "access": "/access",
}
FILMED_S = 280


@contextmanager
def consumer(
    broker: Broker, group: str, topics: list[str], name: str, pause_s: float = 0
) -> Iterator[None]:
    """A member that commits, and takes its time for each record."""
    member = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
            "session.timeout.ms": 6000,
        }
    )
    member.subscribe(topics)
    ended = threading.Event()

    def poll() -> None:
        while not ended.is_set():
            if member.poll(0.1) is not None and pause_s:
                ended.wait(pause_s)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        member.close()


@contextmanager
def producing(broker: Broker) -> Iterator[None]:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
    ended = threading.Event()
    chance = random.Random(7)

    def produce() -> None:
        number = step = 0
        while not ended.wait(0.1):
            step += 1
            for topic, rate in RATES.items():
                for _ in range(rate * step // 10 - rate * (step - 1) // 10):
                    number += 1
                    value = {
                        "id": f"o-{number:06}",
                        "customer": chance.randrange(9000),
                        "total": round(chance.uniform(3, 240), 2),
                        "currency": "EUR",
                    }
                    headers: list[tuple[str, str | bytes | None]] = [
                        ("source", chance.choice(["web", "app", "partner"]).encode())
                    ]
                    key = f"c-{value['customer']}"
                    producer.produce(topic, json.dumps(value), key, headers=headers)
            producer.poll(0)
        producer.flush(30)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def add_streams(broker: Broker) -> None:
    """A native topic that a Redis application reads too, and a stream that is no topic yet."""
    native = {"moldau.storage": "native"}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("sensors", 1, config=native)])["sensors"].result(30)
    rooms = ("kitchen", "cellar", "attic")
    with redis.Redis.from_url(broker.store_url) as store:
        for number in range(40):
            fields = {"room": rooms[number % 3], "celsius": f"{18 + number % 7}.5"}
            store.xadd("moldau:sensors:0", fields)
            store.xadd("weather:raw", {"station": f"s{number % 4}", "wind": str(number % 9)})
        store.xgroup_create("moldau:sensors:0", "dashboard", "0")
        store.xreadgroup("dashboard", "screen-1", {"moldau:sensors:0": ">"}, count=12)


@contextmanager
def shop() -> Iterator[Broker]:
    """A broker in use for a minute, with rebalances of its groups."""
    settings = {"group.initial.rebalance.delay.ms": 1000}
    http = f"127.0.0.1:{free_ports(1)}"
    with running_broker(workers=2, http=http, broker=settings) as broker, ExitStack() as stack:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics([NewTopic(*each) for each in TOPICS.items()]).values():
            made.result(30)
        add_streams(broker)
        enter: Callable[..., None] = stack.enter_context
        enter(producing(broker))
        enter(consumer(broker, "mailer", ["emails"], "mailer-1"))
        enter(consumer(broker, "analytics", ["clicks", "orders"], "spark-1", 0.004))
        enter(consumer(broker, "stock", ["inventory", "orders"], "stock-1"))
        enter(consumer(broker, "fraud", ["payments"], "fraud-1"))
        enter(consumer(broker, "climate", ["sensors"], "climate-1"))
        enter(consumer(broker, "billing", ["orders"], "billing-1", 0.012))
        time.sleep(FILMED_S / 4)
        enter(consumer(broker, "billing", ["orders"], "billing-2"))
        time.sleep(FILMED_S / 4)
        with consumer(broker, "billing", ["orders"], "billing-3"):
            time.sleep(FILMED_S / 4)
        time.sleep(FILMED_S / 4)
        wait_until(lambda: broker.processes("http")[0]["state"] == "running", 60, "it serves")
        yield broker


def shoot(browser: Browser, broker: Broker, directory: Path) -> None:
    looks = {
        "light": {"color_scheme": "light", "viewport": {"width": 1180, "height": 800}},
        "dark": {"color_scheme": "dark", "viewport": {"width": 1180, "height": 800}},
        "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 800}},
    }
    for look, options in looks.items():
        watched = Watched(browser, broker, timezone_id="UTC", locale="en-GB", **options)
        for name, path in PAGES.items():
            watched.page.goto(path)
            if name == "group":
                expect(watched.page.locator(".legend")).to_contain_text("billing-2")
            watched.page.screenshot(path=directory / f"{name}-{look}.png", full_page=True)
        watched.finish()


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    path = next(filter(None, map(shutil.which, CHROMIUM)))
    with shop() as broker, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        shoot(browser, broker, directory)
        browser.close()


if __name__ == "__main__":
    main()
