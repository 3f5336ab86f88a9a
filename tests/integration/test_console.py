"""The console without a browser: its pages, its forms, and what it refuses."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from urllib.parse import quote, urlencode

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.brokers.running import Broker, free_ports, running_broker, wait_until
from tests.support.pages.console import Pages

EVIL = "<script>alert(1)</script>\"'&"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=2, http=f"127.0.0.1:{free_ports(1)}") as started:
        wait_until(lambda: started.processes("http")[0]["state"] == "running", 60, "it serves")
        yield started


@pytest.fixture
def browser(broker: Broker) -> Pages:
    return Pages(broker)


def test_a_topic_is_created_changed_and_deleted(browser: Pages, broker: Broker) -> None:
    browser.get("/topics")
    page = browser.post("/topics", name="made", partitions="2", configs="retention.ms=1000")
    assert "made was created" in page
    assert "retention.ms" in page
    page = browser.post("/topics/made/configs", config="retention.ms", action="reset", value="")
    assert "retention.ms has its default again" in page
    browser.post("/topics/made/partitions", partitions="3")
    metadata = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics("made", 30)
    assert len(metadata.topics["made"].partitions) == 3
    status, text, _ = browser.request(
        "POST", "/topics/made/delete", {"csrf": browser.token, "confirm": "mad"}
    )
    assert (status, "type the name" in text) == (400, True)
    assert "made was deleted" in browser.post("/topics/made/delete", confirm="made")


def test_a_record_sent_here_is_read_by_a_client_and_the_reverse(
    browser: Pages, broker: Broker
) -> None:
    browser.get("/topics")
    page = browser.post("/topics/talk/send", key="k", value='{"id": 7}', headers="source: console")
    assert "sent: partition 0, offset 0" in page
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "talkers",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["talk"])
    try:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        assert (message.key(), message.value()) == (b"k", b'{"id": 7}')
        assert message.headers() == [("source", b"console")]
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "lz4"})
    producer.produce("talk", "from a client")
    assert producer.flush(30) == 0
    assert "from a client" in browser.get("/topics/talk/records")
    filtered = browser.get("/topics/talk/records?" + urlencode({"filter": "value.id = 7"}))
    assert "from a client" not in filtered
    assert "&#34;id&#34;: 7" in filtered
    again = browser.get("/topics/talk/send?partition=0&again=0")
    assert "{&#34;id&#34;: 7}" in again
    assert 'name="no_value">' in again


def test_a_tombstone_is_sent_again_as_one(browser: Pages, broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("gone", None, key="k", partition=0)
    assert producer.flush(30) == 0
    assert 'name="no_value" checked>' in browser.get("/topics/gone/send?partition=0&again=0")


def test_offsets_are_reset_after_a_preview(browser: Pages, broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(5):
        producer.produce("counted", str(number))
    assert producer.flush(30) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "counters",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["counted"])
    for _ in range(5):
        assert consumer.poll(30) is not None
    consumer.commit(asynchronous=False)
    assert "counters" in browser.get("/groups")
    assert "counted" in browser.get("/groups/counters")
    wanted = {"topics": "counted", "goal": "offset", "value": "2"}
    status, text, _ = browser.request(
        "POST", "/groups/counters/reset", {"csrf": browser.token, **wanted}
    )
    assert (status, "stop its consumers first" in text) == (409, True)
    consumer.close()
    preview = browser.post("/groups/counters/reset", **wanted)
    assert "Nothing has changed yet" in preview
    assert "-3" in preview
    assert "1 offsets were reset" in browser.post("/groups/counters/reset", **wanted, execute="1")
    assert re.search(
        r"<td[^>]*>2</td><td[^>]*>5</td><td[^>]*>3</td>", browser.get("/groups/counters")
    )


def test_what_clients_write_is_never_markup(browser: Pages, broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("evil", 1)])["evil"].result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("evil", EVIL, EVIL, headers=[(EVIL, EVIL.encode())])
    assert producer.flush(30) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": EVIL,
            "client.id": EVIL,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["evil"])
    try:
        assert consumer.poll(30) is not None
        consumer.commit(asynchronous=False)
        for path in (
            "/topics/evil/records",
            "/topics/evil",
            "/topics",
            "/groups",
            f"/groups/{quote(EVIL, safe='')}",
            "/topics/evil/send?partition=0&again=0",
            f"/topics?q={quote(EVIL)}",
            f"/topics/evil/records?{urlencode({'filter': EVIL, 'from': 'end'})}",
        ):
            page = browser.get(path)
            assert "<script>alert" not in page, path
            assert html.escape("<script>alert") in page, path
    finally:
        consumer.close()


def test_forms_of_other_sites_and_other_host_names_are_refused(browser: Pages) -> None:
    browser.get("/topics")
    form = {"name": "forged", "partitions": "1"}
    assert browser.request("POST", "/topics", form)[0] == 403
    assert browser.request("POST", "/topics", {**form, "csrf": "0" * 64})[0] == 403
    assert browser.request("GET", "/topics", Host="evil.example:8092")[0] == 403
    assert "forged" not in browser.get("/topics")


def test_pages_load_nothing_from_elsewhere_and_say_so(browser: Pages) -> None:
    _, text, headers = browser.request("GET", "/")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert not re.search(r'(src|href)="(https?:)?//', text)
    assert " style=" not in text
    for path in ("/static/console.css", "/static/console.js", "/static/htmx.min.js"):
        assert browser.get(path)


def test_what_is_not_there(browser: Pages) -> None:
    assert browser.request("GET", "/topics/nothing")[0] == 404
    assert browser.request("GET", "/nowhere")[0] == 404
    assert browser.request("GET", "/topics/x/records?partition=-1")[0] == 400


def test_access_without_security_says_what_is_off(browser: Pages) -> None:
    page = browser.get("/access?principal=alice&resource=CLUSTER")
    assert "No users." in page
    assert "everything is allowed to everyone" in html.unescape(page)
    assert "authorizer.class.name=standard" in page
