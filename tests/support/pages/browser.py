"""A page of a real browser that notes what it should not do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, Route

from tests.support.brokers.running import Broker

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
PATIENCE_MS = 15_000


def address(broker: Broker) -> str:
    match = re.search(r" http=(http://\S+)$", broker.ready_line)
    assert match is not None, broker.ready_line
    return match[1]


class Watched:
    def __init__(self, chromium: Browser, at: Broker | str, **options: Any) -> None:
        """`at`: a broker's console, or the address of a page."""
        self._url = at if isinstance(at, str) else address(at)
        self.elsewhere: list[str] = []
        self.complaints: list[str] = []
        self._context = chromium.new_context(base_url=self._url, **options)
        self._context.route("**/*", self._pass)
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def _pass(self, route: Route) -> None:
        if route.request.url.startswith(self._url):
            route.continue_()
        else:
            self.elsewhere.append(route.request.url)
            route.abort()

    def finish(self) -> None:
        self._context.close()
        assert self.elsewhere == []
        # A form that was refused on purpose is a failed request.
        assert [text for text in self.complaints if "Failed to load resource" not in text] == []


def violations(page: Page) -> list[str]:
    """What axe-core finds to be a serious hindrance for people who use other means than a mouse
    and eyes."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{each['id']}: {each['nodes'][0]['html']}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
