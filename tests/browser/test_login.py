"""Users of the broker log in to its console with a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Browser, Page, expect

from tests.support.brokers.moldau_cli import OperatorCli
from tests.support.brokers.running import Broker, free_ports, running_broker
from tests.support.brokers.secured import librdkafka_settings
from tests.support.pages.browser import Watched, violations
from tests.support.pages.users import PASSWORD, add_user, is_serving, password_of


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=2, secure="true", http=f"127.0.0.1:{free_ports(1)}") as started:
        is_serving(started)
        operator = OperatorCli(started)
        for topic in ("orders", "salaries"):
            operator.json("topics", "create", topic)
        add_user(started, "alice", "--operation read --topic orders")
        yield started


def log_in(page: Page, user: str, password: str) -> None:
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def test_a_user_logs_in_sees_her_topic_and_logs_out(page: Page, broker: Broker) -> None:
    page.goto("/topics?q=o")
    expect(page).to_have_title("Log in · Moldau")
    expect(page.get_by_label("User")).to_be_focused()
    assert page.get_by_role("navigation", name="Main").get_by_role("link").count() == 0
    log_in(page, "alice", "a wrong one")
    expect(page.get_by_role("alert")).to_have_text("Unknown user or wrong password.")
    log_in(page, "alice", PASSWORD)
    expect(page).to_have_url("/topics?q=o")
    expect(page.locator("header")).to_contain_text("alice")
    table = page.locator("tbody")
    expect(table).to_contain_text("orders")
    assert "salaries" not in page.content()
    page.get_by_role("link", name="orders").click()
    page.get_by_text("Change").click()
    page.locator("[name=confirm]").fill("orders")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("alert")).to_contain_text("alice needs DELETE")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("status")).to_have_text("You have logged out.")
    page.goto("/topics")
    expect(page).to_have_title("Log in · Moldau")


def test_scripts_cannot_read_the_session(page: Page, broker: Broker) -> None:
    page.goto("/")
    log_in(page, "alice", PASSWORD)
    expect(page.locator("h1")).to_have_text("Overview")
    assert page.evaluate("document.cookie") == ""
    cookies = {each["name"]: each for each in page.context.cookies()}
    session = cookies[f"moldau_session_{broker.port}"]
    assert session["httpOnly"]
    assert session["sameSite"] == "Strict"
    assert session["expires"] == -1  # it ends with the browser


def test_live_records_stop_and_pages_ask_for_a_login_when_the_user_is_removed(
    page: Page, broker: Broker
) -> None:
    add_user(broker, "bob", "--operation read --topic orders", "--operation describe --group g")
    page.goto("/topics/orders/records")
    log_in(page, "bob", PASSWORD)
    live = page.get_by_role("button", name="Live")
    expect(live).to_be_visible()
    page.wait_for_load_state()  # a click before the script has run does nothing
    live.click()
    expect(page.locator("#live-state")).to_contain_text("live")
    settings: dict[str, Any] = {**librdkafka_settings(broker)}
    producer = Producer(settings)
    producer.produce("orders", "seen by bob")
    assert producer.flush(30) == 0
    expect(page.locator("#rows")).to_contain_text("seen by bob")
    watching = page.context.new_page()  # asks again by itself
    watching.goto("/")
    expect(watching.locator("h1")).to_have_text("Overview")
    OperatorCli(broker).json("users", "remove", "bob")
    expect(page.locator("#live-state")).to_contain_text("your user was removed")
    expect(watching).to_have_title("Log in · Moldau")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_login_is_usable_by_all(chromium: Browser, broker: Broker, scheme: str) -> None:
    watched = Watched(chromium, broker, color_scheme=scheme, viewport={"width": 390, "height": 800})
    page = watched.page
    page.goto("/")
    assert violations(page) == []
    log_in(page, "nobody", "wrong")
    expect(page.get_by_role("alert")).to_be_visible()
    assert violations(page) == []
    log_in(page, "admin", password_of(broker))
    for path in ("/", "/topics", "/access"):
        page.goto(path)
        expect(page.locator("header")).to_contain_text("admin")
        assert violations(page) == [], path
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, f"{path} is {width} wide"
    watched.finish()
    watched = Watched(chromium, broker, color_scheme=scheme)
    watched.page.goto("/")
    log_in(watched.page, "alice", PASSWORD)
    expect(watched.page.locator("main")).to_contain_text("that alice may describe")
    assert violations(watched.page) == []
    watched.page.goto("/access")
    expect(watched.page.get_by_role("note").first).to_contain_text("alice needs DESCRIBE")
    assert violations(watched.page) == []
    watched.finish()


def test_it_works_without_a_script(chromium: Browser, broker: Broker) -> None:
    watched = Watched(chromium, broker, java_script_enabled=False)
    watched.page.goto("/topics")
    log_in(watched.page, "alice", PASSWORD)
    expect(watched.page.locator("tbody")).to_contain_text("orders")
    watched.page.get_by_role("button", name="Log out").click()
    expect(watched.page.get_by_role("status")).to_have_text("You have logged out.")
    watched.finish()
