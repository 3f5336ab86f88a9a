"""The console with many topics and groups: bounded pages, and few requests to the broker.

`ops/test -n 0 -s -m slow tests/integration/test_console_scale.py` prints how long each page takes
with 2,000 topics and 10,000 groups, and a scrape with 1,000 groups and 10,000 partitions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.integration.population import RECORDS, group_name, populate, topic_name
from tests.support.brokers.running import Broker, free_ports, running_broker, wait_until
from tests.support.pages.console import Pages

TOPICS, GROUPS = 150, 240
PAUSE_S = 3.0
TOPIC, GROUP = topic_name(7), group_name(7)
PATHS = (
    "/",
    "/topics",
    "/topics?q=populated-00",
    f"/topics/{TOPIC}",
    f"/topics/{TOPIC}/records",
    "/groups",
    "/groups?page=2",
    "/groups?q=crowd-001",
    f"/groups/{GROUP}",
    f"/groups/{GROUP}/film",
    "/transactions",
    "/access",
    "/adopt",
)


def serving(broker: Broker) -> Pages:
    wait_until(lambda: broker.processes("http")[0]["state"] == "running", 60, "it serves")
    return Pages(broker)


@pytest.fixture(scope="module")
def browser() -> Iterator[Pages]:
    with running_broker(workers=2, http=f"127.0.0.1:{free_ports(1)}") as broker:
        populate(broker.port, topics=TOPICS, groups=GROUPS, topics_of_group=100)
        pages = serving(broker)

        def shown() -> int:
            return sum(len(rows(pages.get(f"/groups?page={number}"))) for number in (1, 2, 3))

        # A report that was asked for meanwhile is shown for a moment, if it took long.
        wait_until(lambda: shown() == GROUPS, 60, "all groups are shown")
        yield pages


def rows(page: str, table: str = "<table") -> list[str]:
    body = page.partition(table)[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return re.findall(r'<th scope="row"><a [^>]*>([^<]+)</a>', body)


def test_lists_come_in_pages_of_100_and_can_be_searched(browser: Pages) -> None:
    first, last = browser.get("/topics"), browser.get("/topics?page=2")
    assert rows(first) == [topic_name(number) for number in range(100)]
    assert rows(last) == [topic_name(number) for number in range(100, TOPICS)]
    assert "page=2" in first
    assert "page=3" not in last
    seen = [name for number in (1, 2, 3) for name in rows(browser.get(f"/groups?page={number}"))]
    assert seen == [group_name(number) for number in range(GROUPS)]
    assert rows(browser.get("/groups?q=WD-0010")) == [group_name(n) for n in range(100, 110)]
    for number in ("0", "-1", "99", "x", "%C2%B2", ""):
        assert len(rows(browser.get(f"/groups?page={number}"))) in (100, 40)


def test_a_topic_names_some_of_its_groups_and_its_page_has_all_in_pages(browser: Pages) -> None:
    line = next(line for line in browser.get("/topics").split("<tr>") if f">{TOPIC}<" in line)
    assert line.count('href="/groups/') == 5
    readers = [n for n in range(GROUPS) if (7 - n) % TOPICS < 100]
    assert f"and {len(readers) - 5} more" in line
    page = browser.get(f"/topics/{TOPIC}")
    found = rows(page, 'id="groups"') + rows(browser.get(f"/topics/{TOPIC}?page=2"), 'id="groups"')
    assert found == [group_name(n) for n in readers]
    lag = RECORDS - 3
    assert re.search(rf">{group_name(3)}</a></th>.*?<td class=\"number\">{lag}</td>", page)


def test_a_page_costs_few_requests_however_much_there_is(browser: Pages) -> None:
    def requests() -> dict[str, float]:
        found: dict[str, float] = {}
        for api, count in re.findall(
            r'^moldau_kafka_requests_total{api="(\w+)".*} (\S+)$', browser.get("/metrics"), re.M
        ):
            found[api] = found.get(api, 0) + float(count)
        return found

    for path in PATHS:
        browser.get(path)
        before = requests()
        assert len(browser.get(path)) < 250_000, path
        after = requests()
        made = {api: count - before.get(api, 0) for api, count in after.items()}
        # Versions are asked for on each connection.
        made.pop("ApiVersions", None)
        assert sum(made.values()) <= 25, (path, made)
        assert before.keys() == after.keys(), path


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_how_long_pages_take_with_2000_topics_and_10000_groups() -> None:
    with running_broker(workers=2, http=f"127.0.0.1:{free_ports(1)}") as broker:
        began = time.monotonic()
        populate(broker.port, topics=2_000, groups=10_000)
        print(f"\n2,000 topics, 10,000 groups; made in {time.monotonic() - began:.1f} s")
        report(broker, [*PATHS, "/metrics"])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_how_long_a_scrape_takes_with_1000_groups_and_10000_partitions() -> None:
    with running_broker(workers=2, http=f"127.0.0.1:{free_ports(1)}") as broker:
        populate(broker.port, topics=1_000, groups=1_000, partitions=10)
        print("\n1,000 topics of 10 partitions, 1,000 groups with 20 offsets each")
        report(broker, ["/metrics"])


def report(broker: Broker, paths: list[str]) -> None:
    """Times of a page for which all processes are asked, and of the same one right after it."""
    browser = serving(broker)
    for path in paths:
        fresh: list[float] = []
        again: list[float] = []
        size = 0
        for _ in range(5):
            time.sleep(PAUSE_S)  # until pages do not share the report of the one before
            for times in (fresh, again):
                began = time.perf_counter()
                size = len(browser.get(path))
                times.append(time.perf_counter() - began)
        print(
            f"{path:34} {min(fresh):6.3f} to {max(fresh):6.3f} s,"
            f" again {min(again):6.3f} to {max(again):6.3f} s, {size // 1024:5} KB"
        )
