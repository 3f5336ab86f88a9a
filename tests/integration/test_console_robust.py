"""The console and what nobody means: odd numbers, large forms, many live views."""

from __future__ import annotations

import html
import http.client
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import quote, urlencode

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from moldau.ops.console.live_views import MAX_LIVE, MAX_LIVE_OF_BROWSER
from tests.support.brokers.running import Broker, free_ports, running_broker, wait_until
from tests.support.pages.console import Pages

ODD = {"square": "²", "arabic": "٣٤", "negative": "-1", "long": "9" * 30, "longer": "9" * 5_000}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"message.max.bytes": 4 << 20}
    with running_broker(workers=2, http=f"127.0.0.1:{free_ports(1)}", broker=settings) as started:
        wait_until(lambda: started.processes("http")[0]["state"] == "running", 60, "it serves")
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        admin.create_topics([NewTopic("t", 1)])["t"].result(30)
        yield started
        assert "Traceback" not in started.log()


@pytest.fixture
def pages(broker: Broker) -> Pages:
    made = Pages(broker)
    made.get("/topics")
    return made


@pytest.mark.parametrize("number", ODD.values(), ids=ODD)
def test_numbers_that_cannot_be_are_the_fault_of_who_asks(pages: Pages, number: str) -> None:
    odd = quote(number)
    for path in (
        f"/topics/t/records?partition={odd}",
        f"/topics/t/records?from={odd}",
        f"/topics/t/live?partition={odd}",
        f"/topics/t/send?partition=0&again={odd}",
        f"/adopt?stream=s&partitions={odd}",
    ):
        status, text, _ = pages.request("GET", path)
        assert (status, "want a" in text) == (400, True), (path, status, text)
    for path in ("/topics/t/send", "/topics", "/topics/t/partitions"):
        form = {"csrf": pages.token, "name": "x", "value": "x", "partition": number}
        status, text, _ = pages.request("POST", path, form | {"partitions": number})
        assert (status, "whole number" in text) == (400, True), (path, status, text)
    assert pages.request("GET", f"/groups?page={odd}")[0] == 200


def test_a_filter_with_an_odd_index_finds_nothing(pages: Pages) -> None:
    pages.post("/topics/t/send", key="k", value='["first"]')
    for index, count in {"0": 1, "²": 0, "9" * 5_000: 0}.items():
        query = urlencode({"filter": f"value.{index} = first", "from": "beginning"})
        assert pages.get(f"/topics/t/records?{query}").count("data-record") == count, index


def test_what_is_not_there_is_not_found(pages: Pages) -> None:
    for path in (
        "/topics/none",
        "/topics/none/records",
        "/topics/t/records?partition=7",
        "/topics/t/send?partition=0&again=77",
        "/groups/none",
        "/transactions/none",
    ):
        status, text, _ = pages.request("GET", path)
        assert status == 404, (path, status, text)
    again = {"csrf": pages.token, "name": "t", "partitions": "1"}
    assert pages.request("POST", "/topics", again)[0] == 409
    assert pages.request("POST", "/topics", again | {"name": "/"})[0] == 400


def test_large_forms(pages: Pages) -> None:
    page = pages.post("/topics/t/send", key="k", value="x" * 3_000_000)
    assert "sent: partition 0" in page
    form = {"csrf": pages.token, "value": "x" * (9 << 20)}
    status, text, _ = pages.request("POST", "/topics/t/send", form)
    assert (status, "too large" in text) == (413, True)
    many = {"csrf": pages.token} | {str(number): "" for number in range(100_000)}
    status, text, _ = pages.request("POST", "/topics/t/send", many)
    assert (status, "Too many fields" in text) == (400, True)


def test_forms_that_cannot_be_read(pages: Pages) -> None:
    status, text = pages.send("/topics/t/send", b"--x", "multipart/form-data")
    assert (status, "boundary" in text) == (400, True)
    status, text = pages.send("/topics/t/send", iter([b"a=b"]))
    assert (status, "length" in text) == (411, True)


def test_only_the_console_says_what_was_done(pages: Pages) -> None:
    for query in ("said=Forged", "said=Forged&seal=00", "said=Forged&seal=%C2%B2"):
        assert 'class="said"' not in pages.get(f"/topics?{query}")
    form = {"csrf": pages.token, "name": "made", "partitions": "1"}
    _, _, headers = pages.request("POST", "/topics", form)
    where = headers["Location"]
    assert "made was created" in pages.get(where)
    assert 'class="said"' not in pages.get(where.replace("said=made", "said=fade"))


def follow(pages: Pages, opened: ExitStack, cookie: str) -> http.client.HTTPResponse:
    connection = pages.connection()
    opened.callback(connection.close)
    connection.request(
        "GET", "/topics/t/live", headers={"Cookie": cookie, "Accept": "text/event-stream"}
    )
    answer = connection.getresponse()
    opened.callback(answer.close)
    return answer


def state(answer: http.client.HTTPResponse) -> str:
    assert answer.readline() == b"event: state\n"
    return html.unescape(answer.readline().decode())


def test_live_views_are_limited_and_leave_pages_alone(pages: Pages, broker: Broker) -> None:
    name = f"moldau_console_{broker.port}"
    with ExitStack() as opened:
        for number in range(MAX_LIVE):
            view = follow(pages, opened, f"{name}=browser-{number // MAX_LIVE_OF_BROWSER}")
            assert state(view) == "data: live\n"
            if number == MAX_LIVE_OF_BROWSER - 1:
                assert "this browser has" in state(follow(pages, opened, f"{name}=browser-0"))
        assert "live views already" in state(follow(pages, opened, f"{name}=another"))
        status, text, _ = pages.request("GET", "/topics/t/live")
        assert (status, "live views already" in text) == (429, True)
        for _ in range(5):
            pages.get("/topics/t/records")
    wait_until(lambda: is_live(pages, name), 60, "those that have ended make room")


def is_live(pages: Pages, name: str) -> bool:
    with ExitStack() as opened:
        return state(follow(pages, opened, f"{name}=browser-0")) == "data: live\n"
