"""The report of a lake: its figures, and a page that is one file."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moldau.broker.topics.topics import GROUP_EVENTS
from moldau.ops.pipeline.lake.tables import Lake
from moldau.ops.pipeline.report.data import Gap, Pause, Report, bucket_width_ms, compute, lag_at
from moldau.ops.pipeline.report.page import render
from tests.support.pipeline.lake_rows import Row, add_rows, make_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = 1_750_000_000_000
NASTY = '<script>alert("x")</script>'


def orders() -> list[Row]:
    """A record a second in each of two partitions; every second one has the same key."""
    return [
        Row(p, i, b"hot" if i % 2 else b"key-%d" % i, b"v" * (100 + 900 * p), START + i * 1000, [])
        for p in range(2)
        for i in range(200)
    ]


def event(number: int, name: str, at_ms: int, **more: object) -> Row:
    document = {"event": name, "group": f"billing {NASTY}", "worker": 0, "time_ms": at_ms, **more}
    return Row(0, number, b"billing", json.dumps(document).encode(), at_ms, [])


def events() -> list[Row]:
    happened: list[tuple[str, int, dict[str, object]]] = [
        ("member_joined", 0, {"members": 1, "member": "a"}),
        ("rebalance_started", 0, {"reason": "member a joined", "members": 1}),
        ("rebalance_completed", 3000, {"reason": "member a joined", "members": 1,
                                       "duration_ms": 3000, "generation": 1}),
        ("commits", 60_000, {"count": 12, "seconds": 60.0,
                             "offsets": {"orders": [[0, 10], [1, 20]], "elsewhere": [[0, 5]]}}),
        ("member_expired", 70_000, {"members": 0, "member": "a"}),
        ("group_empty", 70_500, {"members": 0, "duration_ms": 500}),
    ]  # fmt: skip
    return [event(at, name, START + when, **more) for at, (name, when, more) in enumerate(happened)]


@pytest.fixture(scope="module")
def report(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Report:
    lake = make_lake(tmp_path_factory.mktemp("lakes") / "lake")
    rows = orders()
    add_rows(lake, "orders", rows[:200])
    # The second partition lacks the offsets 50 to 79: two batches around them.
    add_rows(lake, "orders", rows[200:250])
    add_rows(lake, "orders", rows[280:])
    # As after a loss: the log went on at 100, in another leader epoch.
    lost = [row._replace(partition=0) for row in rows[:130]]
    add_rows(lake, "lost", lost[:70])
    add_rows(lake, "lost", lost[100:], leader_epoch=1)
    add_rows(lake, GROUP_EVENTS, events())
    return compute(spark, lake)


def test_counts_sizes_and_partitions(report: Report) -> None:
    (topic,) = [one for one in report.topics if one.name == "orders"]
    assert [(one.partition, one.rows, one.first_offset, one.last_offset, one.without_record)
            for one in topic.partitions] == [(0, 200, 0, 199, 0), (1, 170, 0, 199, 30)]  # fmt: skip
    assert sum(one.rows for one in topic.volume) == topic.rows == 370
    assert sum(one.bytes for one in topic.volume) == topic.bytes
    assert topic.sizes.largest == 1000 + len(b"key-100")
    assert sum(count for _, count in topic.sizes.histogram) == 370
    assert [exponent for exponent, _ in topic.sizes.histogram] == [6, 9]


def test_gaps_and_keys(report: Report) -> None:
    (topic,) = [one for one in report.topics if one.name == "orders"]
    assert topic.gaps == [Gap(1, 50, 79)]
    assert topic.keys.top[0] == ("hot", 185)
    assert topic.keys.without == 0
    assert abs(topic.keys.distinct - 101) < 10


def test_a_gap_that_the_log_has_too_is_told_apart(report: Report) -> None:
    (topic,) = [one for one in report.topics if one.name == "lost"]
    assert topic.gaps == [Gap(0, 70, 99, in_log=True)]
    page = render(report, 0.0)
    assert page.count("in the log too") == 1
    assert page.count("not archived</td>") == 1
    assert page.count("<span class='bad'>30</span>") == 1


def test_offsets_that_the_log_does_not_have_are_no_lag(report: Report) -> None:
    topics = {topic.name: topic for topic in report.topics}
    late = START + 10**9
    assert lag_at(late, {"lost": [[0, 0]]}, topics) == 100
    assert lag_at(late, {"lost": [[0, 70]]}, topics) == 30
    assert lag_at(late, {"lost": [[0, 90]]}, topics) == 30
    assert lag_at(late, {"lost": [[0, 125]]}, topics) == 5
    assert lag_at(late, {"orders": [[1, 40]]}, topics) == 160, "they were there"


def test_group_activity(report: Report) -> None:
    (group,) = report.groups
    assert group.pauses == [Pause(START + 3000, 3000, "member a joined")]
    assert (group.joined, group.left, group.expired, group.members) == (1, 0, 1, 0)
    assert group.commits == [(START + 60_000, 12.0)]
    # After a minute 60 records are in partition 0, and the last before the gap in partition 1.
    (at, lag) = group.lag[0]
    assert at == START + 60_000
    assert lag == pytest.approx((60 - 10) + (50 - 20), abs=10)


def test_the_page_loads_nothing_and_escapes_everything(report: Report) -> None:
    page = render(report, 1_750_000_600.0)
    assert not re.search(r"""(src|href)=["'](?!#)""", page)
    assert "@import" not in page
    assert "url(" not in page
    assert NASTY not in page
    assert "&lt;script&gt;" in page
    assert page.count("<svg") >= 5
    assert "50 to 79" in page

    class Balanced(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "rect", "line", "polyline", "polygon"):
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag in ("rect", "line", "polyline", "polygon"):
                return
            assert self.open.pop() == tag

    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []


def test_an_empty_lake_has_a_page_too(spark: "SparkSession", tmp_path: Path) -> None:
    lake: Lake = make_lake(tmp_path / "lake")
    page = render(compute(spark, lake), 0.0)
    assert "nothing was archived yet" in page
    assert f"moldau pipeline archive --topic {GROUP_EVENTS}" in page


def test_buckets_are_round_and_few() -> None:
    hour = 3_600_000
    assert bucket_width_ms(0, 0) == 1000
    assert bucket_width_ms(0, hour) == 60_000
    assert bucket_width_ms(0, 24 * hour) == 900_000
    assert (50 * 365 * 24 * hour) / bucket_width_ms(0, 50 * 365 * 24 * hour) <= 101
