"""A report as one HTML page, with its style sheet and charts inside."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from moldau.broker.topics.topics import GROUP_EVENTS
from moldau.ops.command_line import size_text
from moldau.ops.pipeline.report.charts import Point, bars_over_time, columns, line_over_time, shares
from moldau.ops.pipeline.report.data import GroupActivity, Partition, Report, Topic

_STYLE = Path(__file__).with_name("report.css")
_MAX_PARTITIONS = 200


def render(report: Report, now: float) -> str:
    topics = report.topics
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Moldau lake report</title><style>{_STYLE.read_text()}</style></head><body>",
        "<header><h1>What is in the lake</h1>",
        f"<p class='lead'>{escape(report.lake)}, as of {_when(now * 1000)}</p>",
        _cards(
            ("topics", f"{len(topics) + report.topics_left_out:,}"),
            ("partitions", f"{sum(len(topic.partitions) for topic in topics):,}"),
            ("records", f"{sum(topic.rows for topic in topics):,}"),
            ("keys and values", size_text(sum(topic.bytes for topic in topics))),
            ("consumer groups", f"{len(report.groups):,}"),
            ("gaps", f"{sum(len(topic.gaps) for topic in topics):,}"),
        ),
        _contents(report),
        "</header><main>",
    ]
    if report.topics_left_out:
        parts.append(
            f"<p class='note'>The {len(topics)} largest topics are shown; "
            f"{report.topics_left_out:,} more are in the lake.</p>"
        )
    if not topics:
        parts.append("<p class='note'>The lake is empty: nothing was archived yet.</p>")
    parts += [_topic(at, topic) for at, topic in enumerate(topics)]
    parts.append(_groups(report))
    parts.append("</main><footer>made by moldau pipeline report</footer></body></html>\n")
    return "\n".join(parts)


def _when(at_ms: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_ms / 1000))


def _cards(*facts: tuple[str, str]) -> str:
    return "<div class='cards'>" + "".join(
        f"<div class='card'><b>{escape(value)}</b><span>{escape(name)}</span></div>"
        for name, value in facts
    ) + "</div>"  # fmt: skip


def _contents(report: Report) -> str:
    links = [
        f"<a href='#topic-{at}'>{escape(topic.name)}</a>" for at, topic in enumerate(report.topics)
    ]
    if report.groups:
        links.append("<a href='#groups'>consumer groups</a>")
    return f"<nav>{''.join(links)}</nav>"


def _panel(title: str, body: str) -> str:
    return f"<div class='panel'><h3>{escape(title)}</h3>{body}</div>"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    # It may be wider than a phone: it is scrolled by keyboard, too.
    scroll = "<div class='scroll' tabindex='0' role='region' aria-label='Table'>"
    return f"{scroll}<table><tr>{head}</tr>{body}</table></div>"


# --- topics ---


def _topic(at: int, topic: Topic) -> str:
    first = min(one.first_ms for one in topic.partitions)
    last = max(one.last_ms for one in topic.partitions)
    about = (
        f"{topic.rows:,} records and {size_text(topic.bytes)} in {len(topic.partitions)} "
        f"partitions, from {_when(first)} to {_when(last)}"
    )
    if topic.name == GROUP_EVENTS:
        about += "; the broker's own, shown below as groups"
    return "\n".join(
        (
            f"<section id='topic-{at}'><h2>{escape(topic.name)}</h2>",
            f"<p class='lead'>{about}</p>",
            _volume(topic),
            _record_sizes(topic),
            _key_skew(topic),
            _partitions(topic),
            _gaps(topic),
            "</section>",
        )
    )


def _volume(topic: Topic) -> str:
    points = [
        Point(
            one.at_ms,
            one.bytes,
            f"{_when(one.at_ms)}: {one.rows:,} records, {size_text(one.bytes)}",
        )
        for one in topic.volume
    ]
    chart = bars_over_time(points, topic.width_ms, "bytes", f"volume of {topic.name} over time")
    return _panel(f"Volume, each bar {_duration(topic.width_ms)}", chart)


def _record_sizes(topic: Topic) -> str:
    sizes = topic.sizes
    bars = [
        (
            size_text(1 << exponent).replace(".0", ""),
            float(count),
            f"{count:,} records of {1 << exponent:,} to {(2 << exponent) - 1:,} bytes",
        )
        for exponent, count in sizes.histogram
    ]
    note = (
        f"<p class='note'>median {size_text(sizes.median)}, 99th percentile "
        f"{size_text(sizes.p99)}, largest {size_text(sizes.largest)}</p>"
    )
    return _panel("Record sizes", columns(bars, f"record sizes of {topic.name}") + note)


def _key_skew(topic: Topic) -> str:
    keys = topic.keys
    if not keys.top:
        return _panel("Keys", "<p class='note'>no record has a key</p>")
    rows = topic.rows
    bars = [(key, float(n), f"{n:,} · {100 * n / rows:.1f} %") for key, n in keys.top]
    note = (
        f"about {keys.distinct:,} keys; the most frequent has {100 * keys.top[0][1] / rows:.1f} %"
    )
    if keys.without:
        note += f"; {keys.without:,} records have none"
    return _panel("Most frequent keys", shares(bars) + f"<p class='note'>{note}</p>")


def _partitions(topic: Topic) -> str:
    shown = topic.partitions[:_MAX_PARTITIONS]
    fair = topic.rows / len(topic.partitions)
    fullest = max(topic.partitions, key=lambda one: one.rows)
    bars = [
        (f"partition {one.partition}", float(one.rows), f"{one.rows:,} · {size_text(one.bytes)}")
        for one in shown
    ]
    skew = (
        f"<p class='note'>partition {fullest.partition} has {fullest.rows / fair:.2f} times "
        "its fair share</p>"
        if len(topic.partitions) > 1
        else ""
    )
    table = _table(
        ("partition", "first offset", "last offset", "records", "without a record", "newest"),
        (_partition_row(one) for one in shown),
    )
    left_out = len(topic.partitions) - len(shown)
    more = f"<p class='note'>and {left_out:,} more</p>" if left_out else ""
    return _panel("Partitions", shares(bars) + skew + table + more)


def _partition_row(one: Partition) -> tuple[str, ...]:
    return (
        str(one.partition),
        f"{one.first_offset:,}",
        f"{one.last_offset:,}",
        f"{one.rows:,}",
        f"{max(one.without_record, 0):,}",
        _when(one.last_ms),
    )


def _gaps(topic: Topic) -> str:
    if not topic.gaps:
        return _panel(
            "Gaps",
            "<p><span class='good'>none</span> <span class='note'>every offset between the first "
            "and the last is covered by a batch; offsets without a record are ends of "
            "transactions, aborted records, or were compacted</span></p>",
        )
    rows = (
        (
            f"partition {gap.partition}",
            f"{gap.first:,} to {gap.last:,}",
            f"{gap.last - gap.first + 1:,}"
            if gap.in_log
            else f"<span class='bad'>{gap.last - gap.first + 1:,}</span>",
            "in the log too" if gap.in_log else "not archived",
        )
        for gap in topic.gaps
    )
    notes = []
    if not all(gap.in_log for gap in topic.gaps):
        notes.append(
            "Offsets that were not archived were trimmed from the broker before, or compacted, as "
            "is right for a topic with cleanup.policy=compact. A longer retention.ms, or "
            "remote.storage.enable=true, keeps others from being trimmed."
        )
    if any(gap.in_log for gap in topic.gaps):
        notes.append(
            "A gap that the log has too was left when the store lost the end of the log, or might "
            "have, and a new leader epoch began: its offsets were lost there, or never used. "
            "<code>moldau topics describe</code> shows the same gaps."
        )
    note = "".join(f"<p class='note'>{text}</p>" for text in notes)
    return _panel("Gaps", _table(("where", "offsets", "missing", ""), rows) + note)


def _duration(ms: float) -> str:
    if ms < 1000:
        return f"{ms:,.0f} ms"
    seconds = ms / 1000
    for name, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = seconds / size
            return f"{count:g} {name}{'' if count == 1 else 's'}" if count == int(count) else (
                f"{count:.1f} {name}s"
            )  # fmt: skip
    return f"{seconds:g} s"


# --- groups ---


def _groups(report: Report) -> str:
    parts = ["<section id='groups'><h2>Consumer groups</h2>"]
    if not report.groups:
        parts.append(
            f"<p class='note'>There are no group events: the topic {GROUP_EVENTS} is not in the "
            "lake. Archive it like any other: moldau pipeline archive --topic "
            f"{GROUP_EVENTS}</p></section>"
        )
        return "".join(parts)
    if report.dropped_events:
        parts.append(
            f"<p class='note bad'>{report.dropped_events:,} events were dropped by workers while "
            "the store was slow: what follows is incomplete.</p>"
        )
    head = (
        "group", "rebalances", "longest pause", "pauses in all", "joined", "left", "expired",
        "members",
    )  # fmt: skip
    parts.append(_panel("All groups", _table(head, map(_group_row, report.groups))))
    parts += [_group(group) for group in report.groups if group.pauses or group.commits]
    parts.append("</section>")
    return "\n".join(parts)


def _group_row(group: GroupActivity) -> tuple[str, ...]:
    durations = [pause.duration_ms for pause in group.pauses]
    expired = f"<span class='bad'>{group.expired:,}</span>" if group.expired else "0"
    return (
        escape(group.name),
        f"{len(durations):,}",
        _duration(max(durations, default=0)),
        _duration(sum(durations)),
        f"{group.joined:,}",
        f"{group.left:,}",
        expired,
        f"{group.members:,}",
    )


def _group(group: GroupActivity) -> str:
    parts = [f"<h2>{escape(group.name)}</h2>"]
    if group.pauses:
        points = [
            Point(
                one.at_ms,
                one.duration_ms,
                f"{_when(one.at_ms)}: {_duration(one.duration_ms)}, {one.reason}",
            )
            for one in group.pauses
        ]
        chart = line_over_time(points, " ms", f"rebalances of {group.name}", stems=True)
        parts.append(_panel("Rebalances: how long the group did not read", chart))
    if group.lag:
        points = [Point(at, lag, f"{_when(at)}: {lag:,} records") for at, lag in group.lag]
        chart = line_over_time(points, "", f"lag of {group.name}")
        parts.append(_panel("Lag in records of archived topics", chart))
    if group.commits:
        points = [Point(at, rate, f"{_when(at)}: {rate:,.1f}") for at, rate in group.commits]
        chart = line_over_time(points, "", f"commits of {group.name}")
        parts.append(_panel("Commits in a minute", chart))
    return "".join(parts)
