"""The console with thousands of topics and groups: bounded pages, few requests to the broker.

`ops/test -n 0 -s -m slow tests/integration/test_console_scale.py` prints the time of each page with
2,000 topics and 10,000 groups, and of a scrape.
"""

from __future__ import annotations

import time

import pytest

from tests.support.pages import Pages
from tests.support.population import group_name, populate, topic_name
from tests.support.running import free_ports, running_broker

PATHS = (
    "/",
    "/topics",
    "/topics?q=populated-019",
    f"/topics/{topic_name(7)}",
    f"/topics/{topic_name(7)}/records",
    "/groups",
    "/groups?page=2",
    "/groups?q=crowd-0012",
    f"/groups/{group_name(7)}",
    f"/groups/{group_name(7)}/film",
    "/transactions",
    "/access",
)


@pytest.mark.slow
def test_how_long_pages_take_with_2000_topics_and_10000_groups() -> None:
    with running_broker(workers=2, http=f"127.0.0.1:{free_ports(1)}") as broker:
        began = time.monotonic()
        populate(broker.port, topics=2_000, groups=10_000)
        print(f"\npopulated in {time.monotonic() - began:.1f} s")
        browser = Pages(broker)
        browser.get("/")
        for path in (*PATHS, "/metrics"):
            times = []
            for _ in range(5):
                began = time.perf_counter()
                page = browser.get(path)
                times.append(time.perf_counter() - began)
            best, worst = min(times), max(times)
            print(f"{path:40} {best:6.3f} to {worst:6.3f} s  {len(page) / 1024:8.0f} KB")
