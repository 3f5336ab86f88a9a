"""Native topics in the console and in the metrics: adopting one, Redis' side, lag in records."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import pytest
import redis
from confluent_kafka import Consumer, TopicPartition

from tests.support.brokers.running import Broker, free_ports, running_broker, wait_until
from tests.support.pages.console import Pages

EVIL = "<script>alert(1)</script>"
UNKNOWN = "\N{EN DASH}"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=2, http=f"127.0.0.1:{free_ports(1)}") as started:
        wait_until(lambda: started.processes("http")[0]["state"] == "running", 60, "it serves")
        yield started


@pytest.fixture
def browser(broker: Broker) -> Pages:
    return Pages(broker)


@pytest.fixture
def store(broker: Broker) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(broker.store_url) as made:
        yield made


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def entry_id(added: bytes | str) -> str:
    return added.decode() if isinstance(added, bytes) else added


def commit(broker: Broker, group: str, topic: str, offset: int) -> None:
    simple = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    simple.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    simple.close()


def test_a_stream_is_looked_at_and_adopted(
    browser: Pages, broker: Broker, store: redis.Redis
) -> None:
    for number in range(7):
        store.xadd("sensors:raw", {"room": f"{EVIL}{number}", "t": "21.5"}, id=f"{5 + number}-1500")
    store.xadd("sensors:raw", {"key": "k", "value": "x" * 100_000, "header.from": "app"})
    before = store.dump("sensors:raw")
    preview = browser.get("/adopt?stream=sensors%3Araw")
    assert EVIL not in preview
    shown = text_of(preview)
    assert "Make it the topic sensors-raw" in shown
    assert " 8 " in shown, "its length"
    assert "11 bits" in shown, "chosen by the ids"
    assert f'"room": "{EVIL}6"' in shown, "the record that an entry will be"
    assert "shown in part" in shown
    assert len(preview) < 20_000, "a large value is cut off"
    assert f"{EVIL}0" not in shown, "only the newest"
    assert "sensors-raw" not in browser.get("/topics"), "nothing has happened yet"

    done = text_of(browser.post("/adopt", stream="sensors:raw", value="room"))
    assert "sensors:raw is the topic sensors-raw" in done
    assert store.dump("sensors:raw") == before
    records = browser.get("/topics/sensors-raw/records?from=beginning")
    assert html.escape(EVIL) in records

    status, page, _ = browser.request("GET", "/adopt?stream=sensors%3Araw")
    assert (status, "already" in text_of(page), "Make it" in page) == (200, True, False)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("stream=nothing-there", "nothing-there"),
        ("stream=a-string", "a-string is a string in Redis, not a stream"),
        ("stream=s&partitions=3", "put {partition} into the key"),
        ("stream=s&partitions=x", "a whole number from 1 to 10000"),
        ("stream=%3A", "choose one"),
    ],
)
def test_what_cannot_be_adopted(browser: Pages, store: redis.Redis, query: str, said: str) -> None:
    store.set("a-string", "x")
    _, page, _ = browser.request("GET", f"/adopt?{query}")
    assert said in text_of(page)
    assert "Make it" not in page


def test_redis_and_kafka_groups_are_side_by_side(
    browser: Pages, broker: Broker, store: redis.Redis
) -> None:
    browser.get("/topics")
    browser.post("/topics", name="shared", partitions="1", configs="moldau.storage=native")
    key = "moldau:shared:0"
    ids = [entry_id(store.xadd(key, {"value": str(number)})) for number in range(10)]
    store.xgroup_create(key, "dashboard", "0")
    store.xreadgroup("dashboard", "screen-7", {key: ">"}, count=4)
    store.xack(key, "dashboard", ids[0])
    ms, seq = map(int, ids[5].split("-"))
    commit(broker, "billing", "shared", ms << 10 | seq)

    def is_counted() -> bool:
        return re.search(r"billing Empty 0 5 ", text_of(browser.get("/topics/shared"))) is not None

    wait_until(is_counted, 60, "the lag of the Kafka group is counted")
    shown = text_of(browser.get("/topics/shared"))
    assert f"0 {key} 10 10 {ids[0]} {ids[-1]}" in shown
    # Of Kafka: state, members, lag; of Redis: consumers, pending, age, not delivered.
    assert re.search(r"dashboard has committed nothing 1 3 \d\S*( \S+)? 6 ", shown)
    assert re.search(r"billing Empty 0 5 ", shown)
    pending = 'moldau_native_pending_entries{topic="shared",consumergroup="dashboard",worker='
    assert re.search(re.escape(pending) + r'"\d"} 3$', browser.get("/metrics"), re.MULTILINE)
    details = shown.partition("Consumers and pending entries of dashboard")[2]
    assert re.search(r"screen-7 0 3 .*? ago", details)
    for pending in ids[1:4]:
        assert re.search(rf"{pending} 0 screen-7 \d.*? ago 1 ", details)
    assert ids[0] not in details, "it was acknowledged"
    assert ids[4] not in details, "it was not delivered"


def test_the_lag_of_a_native_topic_is_the_same_everywhere(
    browser: Pages, broker: Broker, store: redis.Redis
) -> None:
    """Console and metrics show the same records, or unknown where they cannot be counted."""
    browser.get("/topics")
    browser.post("/topics", name="timed", partitions="1", configs="moldau.storage=native")
    key, count, middle = "moldau:timed:0", 20_600, 10_300
    with store.pipeline(transaction=False) as pipe:
        for second in range(count):
            pipe.xadd(key, {"value": "v"}, id=f"{1_700_000_000_000 + 1000 * second}-0")
        pipe.execute()

    def offset(number: int) -> int:
        return 1_700_000_000_000 + 1000 * number << 10

    def lags() -> tuple[str | None, str | None]:
        metrics = browser.get("/metrics")
        label = 'consumergroup="timers",topic="timed"'
        single = re.search(rf"kafka_consumergroup_lag{{{label},partition=\"0\"}} (\S+)", metrics)
        whole = re.search(rf"kafka_consumergroup_lag_sum{{{label}}} (\S+)", metrics)
        assert (single is None) == (whole is None)
        listed = re.search(r"timers Empty 0 (\S+)", text_of(browser.get("/groups")))
        return single[1] if single else None, listed[1] if listed else None

    commit(broker, "timers", "timed", offset(count - 250))
    wait_until(lambda: lags() == ("250", "250"), 60, "counted from the end")
    described = text_of(browser.get("/groups/timers"))
    assert " 250 " in described
    commit(broker, "timers", "timed", offset(middle))
    wait_until(lambda: lags() == (None, UNKNOWN), 60, "unknown in the middle")
    store.xadd(key, {"value": "one more"})
    commit(broker, "timers", "timed", offset(100))
    wait_until(lambda: lags() == ("20501", "20,501"), 60, "counted from the start")
    topics = text_of(browser.get("/topics"))
    assert re.search(r"timed 1 20,601 ", topics), "records, not a difference of times"
    commit(broker, "timers", "timed", (1 << 62) - 1)
    wait_until(lambda: lags() == ("0", "0"), 60, "nothing is behind the end")
