"""A broker with its console, and a real browser: Debian's chromium, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.brokers.running import Broker, free_ports, running_broker, wait_until
from tests.support.pages.browser import CHROMIUM, Watched

# Playwright's five seconds are too few on a busy machine.
expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(
        workers=2,
        http=f"127.0.0.1:{free_ports(1)}",
        broker={"group.initial.rebalance.delay.ms": 10},
    ) as started:
        wait_until(lambda: started.processes("http")[0]["state"] == "running", 60, "it serves")
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    assert path is not None, "no chromium: ops/test installs it (apt-get install chromium)"
    with sync_playwright() as driver:
        # As root, as in CI, its sandbox is not available; what it loads is our own.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser, broker: Broker) -> Iterator[Page]:
    """A page that may load nothing from elsewhere, and must not complain."""
    watched = Watched(chromium, broker)
    yield watched.page
    watched.finish()
