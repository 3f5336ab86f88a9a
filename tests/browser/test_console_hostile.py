"""The console against what is around it: other sites, names of any kind, a killed process."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import redis
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from playwright.sync_api import Browser, Page, expect

from tests.support.brokers.running import Broker, wait_until
from tests.support.pages.browser import Watched, address

EVIL = '<img src=x onerror="document.title=1">'


@contextmanager
def site(page: str) -> Iterator[str]:
    """Another site on this machine: for a browser, the same one but for its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def topics_of(broker: Broker) -> set[str]:
    return set(AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics)


def test_a_form_of_another_site_is_refused(chromium: Browser, broker: Broker) -> None:
    console = address(broker)
    forged = f"""<form method="post" action="{console}/topics">
      <input name="name" value="forged"><input name="partitions" value="1">
      <input name="csrf" value="{"0" * 64}"><button>Win a prize</button></form>"""
    framed = f'<iframe src="{console}/topics" title="x"></iframe>'
    context = chromium.new_context()
    page = context.new_page()
    page.goto(f"{console}/topics")  # the browser has the console's cookie
    with site(forged) as elsewhere:
        page.goto(elsewhere)
        with page.expect_response(f"{console}/topics") as caught:
            page.get_by_role("button").click()
        sent = caught.value.request.all_headers()
        assert "moldau_console" in sent.get("cookie", ""), "the cookie alone would have let it in"
        assert caught.value.status == 403
        expect(page.locator("body")).to_contain_text("not made by this console")
    with site(framed) as elsewhere:
        page.goto(elsewhere)
        assert "Topics" not in page.frames[-1].content()
    assert "forged" not in topics_of(broker)
    context.close()


def test_names_of_all_kinds_do_nothing(page: Page, broker: Broker) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": EVIL, "client.id": EVIL}
    )
    producer.init_transactions(30)
    with redis.Redis.from_url(broker.store_url) as store:
        store.xadd(EVIL, {EVIL: EVIL})
        store.xgroup_create(EVIL, EVIL, "0")
        store.xreadgroup(EVIL, EVIL, {EVIL: ">"})
    evil = quote(EVIL, safe="")
    for path in (
        "/transactions",
        f"/transactions/{evil}",
        f"/topics/{evil}",
        f"/topics?q={evil}",
        f"/groups?q={evil}",
        f"/adopt?stream={evil}&topic=adopted-evil",
    ):
        page.goto(path)
        expect(page.locator("main")).to_contain_text("onerror")
        assert page.locator("main img").count() == 0, path
        assert not page.title().startswith("1"), path
    page.goto(f"/topics?said={evil}")  # only the console itself can say something there
    expect(page.locator("main")).not_to_contain_text("onerror")
    page.goto(f"/access?principal={evil}&resource=TOPIC&name={evil}")
    assert page.locator("[name=principal]").first.input_value() == EVIL
    assert page.locator("main img").count() == 0
    page.goto(f"/adopt?stream={evil}&topic=adopted-evil")
    page.get_by_role("button", name="Make it the topic").click()
    expect(page.get_by_role("status")).to_contain_text("onerror")
    page.get_by_text("Consumers and pending entries").click()
    expect(page.get_by_role("region", name="Pending entries")).to_contain_text("onerror")
    assert page.locator("main img").count() == 0
    assert page.title().startswith("adopted-evil")


def test_the_http_process_is_killed_and_pages_go_on(chromium: Browser, broker: Broker) -> None:
    """A page that is open shows new figures again; clients of the broker notice nothing."""
    watched = Watched(chromium, broker)  # requests fail meanwhile, as they must
    page = watched.page
    page.goto("/")
    workers = broker.pids("worker")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("through-it", "before")
    assert producer.flush(30) == 0
    broker.wait_restarted("http", 0, broker.kill("http"))
    producer.produce("through-it", "after")
    assert producer.flush(30) == 0
    wait_until(lambda: broker.processes("http")[0]["state"] == "running", 60, "it serves again")
    # Not reloaded: the page asks for its changing part every few seconds.
    row = page.locator("tr", has=page.locator("th", has_text="http"))
    expect(row.locator("td").nth(2)).to_have_text("1", timeout=60_000)
    assert broker.pids("worker") == workers
    page.goto("/topics/through-it/records")
    expect(page.locator("#rows")).to_contain_text("after")
    page.context.close()
    assert watched.elsewhere == []


def test_a_record_of_a_client_is_seen_without_a_reload(page: Page, broker: Broker) -> None:
    """And what the page sends is read by a client that waits for it."""
    admin = Producer({"bootstrap.servers": broker.bootstrap})
    admin.produce("both-ways", "first")
    assert admin.flush(30) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "both-ways",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["both-ways"])
    try:
        message = consumer.poll(60)
        assert message is not None
        assert message.value() == b"first"
        page.goto("/topics/both-ways/send")
        page.locator("[name=value]").fill("from the page")
        page.get_by_role("button", name="Send").click()
        message = consumer.poll(60)
        assert message is not None
        assert message.value() == b"from the page"
    finally:
        consumer.close()
    page.goto("/topics/both-ways/records")
    page.get_by_role("button", name="Live").click()
    expect(page.locator("#live-state")).to_contain_text("live")
    admin.produce("both-ways", "from a client")
    assert admin.flush(30) == 0
    expect(page.locator("#rows")).to_contain_text("from a client")
    expect(page.locator("#live-state")).to_contain_text("1 new records")
