"""The page of `moldau pipeline report`, looked at as the console's are: one file, for everyone."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from moldau.ops.pipeline.report.data import (
    Gap,
    GroupActivity,
    Keys,
    Partition,
    Pause,
    Report,
    Sizes,
    Topic,
    Volume,
)
from moldau.ops.pipeline.report.page import render
from tests.support.pages.browser import Watched, violations

START = 1_750_000_000_000
EVIL = '<img src="http://192.0.2.1/x" onerror="document.title=1">'


def report() -> Report:
    """What a lake of some topics and groups is computed to; names are what clients chose."""
    minutes = [START + 60_000 * number for number in range(60)]
    partitions = [
        Partition(number, 9_000, 1 << 20, 0, 9_199, START, minutes[-1]) for number in range(3)
    ]
    topic = Topic(
        "orders",
        partitions,
        60_000,
        [Volume(at, 150 + number * 7 % 90, 17_000) for number, at in enumerate(minutes)],
        {each.partition: [(at, 150 * n) for n, at in enumerate(minutes)] for each in partitions},
        Sizes(110, 900, 4_000, [(6, 20_000), (9, 6_000), (12, 1_000)]),
        Keys(4_000, 120, [(EVIL, 900), ("c-17", 300)]),
        [Gap(0, 100, 199), Gap(1, 500, 599, in_log=True)],
    )
    group = GroupActivity(
        f"billing {EVIL}",
        [Pause(minutes[5], 3_100, f"member {EVIL} joined"), Pause(minutes[40], 900, "x left")],
        3,
        1,
        1,
        2,
        [(at, 12.0) for at in minutes],
        [(at, number * 31 % 400) for number, at in enumerate(minutes)],
    )
    return Report(f"/lake/{EVIL}", [topic, topic._replace(name="payments")], [group], 1, 2)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(report(), START / 1000))
    return path.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_the_report_loads_nothing_and_is_usable_by_all(
    chromium: Browser, page_file: str, scheme: str, width: int
) -> None:
    watched = Watched(
        chromium, page_file, color_scheme=scheme, viewport={"width": width, "height": 800}
    )
    page = watched.page
    page.goto(page_file)
    expect(page.locator("h1")).to_have_text("What is in the lake")
    expect(page.locator("body")).to_contain_text("onerror")
    assert page.locator("img").count() == 0
    assert page.title() == "Moldau lake report"
    assert page.locator("svg").count() >= 5
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    watched.finish()


def test_the_report_is_the_same_without_a_script(chromium: Browser, page_file: str) -> None:
    watched = Watched(chromium, page_file, java_script_enabled=False)
    watched.page.goto(page_file)
    expect(watched.page.locator("body")).to_contain_text("payments")
    assert watched.page.locator("script").count() == 0
    watched.finish()
