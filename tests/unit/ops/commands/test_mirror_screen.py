"""What people see of a mirror."""

from __future__ import annotations

from rich.console import Console

from moldau.ops.commands.mirror_screen import lines_of, screen
from moldau.ops.mirror.report import GroupReport, Report, TopicReport


def topic(name: str, state: str = "mirroring", **changes: object) -> TopicReport:
    fields: dict[str, object] = {
        "partitions": 3, "records": 1_000, "bytes": 4096, "lag": 0, "why": None, "left_out": [],
    }  # fmt: skip
    return TopicReport(name, state, **{**fields, **changes})  # type: ignore[arg-type]


def report(*topics: TopicReport, **changes: object) -> Report:
    fields: dict[str, object] = {
        "records": 3_000, "bytes": 12_288, "lag": 7, "groups": [], "acls": 0, "acls_why": None,
        "trouble": None,
    }  # fmt: skip
    return Report(topics=list(topics), **{**fields, **changes})  # type: ignore[arg-type]


def shown(found: Report, elapsed: float = 10.0, height: int = 40) -> str:
    console = Console(width=100, height=height)
    with console.capture() as capture:
        console.print(screen(found, elapsed, height))
    return capture.get()


def test_the_view_shows_each_topic_those_with_problems_first() -> None:
    text = shown(
        report(topic("a"), topic("late", lag=7), topic("bad", "refused", lag=None)), elapsed=10.0
    )
    assert "3,000 records, 12.0 KiB in 10 s (300/s); lag 7" in text
    assert text.index("bad") < text.index("late") < text.index("│ a ")


def test_the_view_fits_on_the_terminal() -> None:
    text = shown(report(*(topic(f"topic-{number:03}") for number in range(100))), height=24)
    assert len(text.splitlines()) <= 24
    assert "and 84 more topics" in text


def test_trouble_and_offsets_that_wait() -> None:
    waiting = GroupReport("g", 3, 2, active_here=False, why=None)
    text = shown(report(topic("a"), groups=[waiting], trouble="no broker\x1b answers"))
    assert "1 groups, 2 offsets wait for their records" in text
    assert "no broker\\x1b answers" in text


def test_the_last_lines_say_what_was_not_copied() -> None:
    found = report(
        topic("a", left_out=["min.insync.replicas=2: here it counts replicas of the store"]),
        topic("bad", "refused"),
        groups=[
            GroupReport("moved", 0, 0, active_here=True, why=None),
            GroupReport("late", 0, 2, active_here=False, why=None),
            GroupReport("denied", 0, 0, active_here=False, why="not allowed"),
            GroupReport("fine", 2, 0, active_here=False, why=None),
        ],
        acls=2,
        acls_why="no authorizer",
    )
    assert list(lines_of(found)) == [
        "1 topics, 3,000 records, 12.0 KiB copied; lag 7",
        "topic a: not copied: min.insync.replicas=2: here it counts replicas of the store",
        "group moved has members here, and keeps its own offsets",
        "group late: 2 offsets are beyond what is mirrored, and not copied",
        "group denied: not allowed",
        "2 ACLs made",
        "ACLs are not copied: no authorizer",
    ]
