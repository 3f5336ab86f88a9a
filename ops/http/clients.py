"""Metrics that clients have pushed to workers (KIP-714): as series, and beside a group. Pure.

A client that moves from one worker to another has pushed to both: the last push counts. Names come
from clients: the broker has bounded them, here they become names of Prometheus, and where two
become the same one, the first is taken.

The console shows those of a group's members. Java says in which group a client is, and as which
member; librdkafka only the group. Where a client does not say, its client id and address have to be
those of a member.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from moldau.broker.metrics.document import ClientRow, ClientValue, Family, Kind, Sample
from moldau.ops.http.snapshot import Snapshot

if TYPE_CHECKING:
    from moldau.ops.operations.groups import GroupMember

MAX_SERIES = 20_000  # of all clients; the ones that pushed last come first
PREFIX = "moldau_client_"
_LABELS = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_host",
)
_GROUP = "consumergroup"  # as in the metrics of groups
_RESERVED = {*_LABELS, _GROUP, "job", "instance", "le", "quantile"}
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]+")
# Metrics that all clients have: a word, the name, and whether it is a ratio; the others are
# milliseconds. The worst node counts.
SHOWN = (
    ("poll idle", "consumer.poll.idle.ratio.avg", True),
    ("fetch", "consumer.fetch.manager.fetch.latency.avg", False),
    ("commit", "consumer.coordinator.commit.latency.avg", False),
    ("rebalance", "consumer.coordinator.rebalance.latency.avg", False),
    ("requests", "consumer.node.request.latency.avg", False),
)


def clients_of(snapshot: Snapshot) -> list[ClientRow]:
    """The last push of every client, the latest first."""
    rows = [row for each in snapshot.workers if each is not None for row in each.clients]
    rows.sort(key=lambda row: row.pushed_ms, reverse=True)
    found: dict[tuple[str, str], ClientRow] = {}
    for row in rows:
        found.setdefault((row.instance_id, row.client_id), row)
    return list(found.values())


def client_families(snapshot: Snapshot) -> list[Family]:
    kinds: dict[str, Kind] = {}
    samples: dict[tuple[str, tuple[str, ...]], dict[tuple[str, ...], float]] = {}
    left = MAX_SERIES
    for row in clients_of(snapshot):
        who = (
            row.client_id,
            row.instance_id,
            row.software_name,
            row.software_version,
            row.host,
        )
        for value in row.values[:left]:
            name = PREFIX + _sanitized(value.name)
            kinds.setdefault(name, Kind.COUNTER if value.is_counter else Kind.GAUGE)
            labels = _labels(value)
            if "group_id" in row.resource:
                labels[_GROUP] = row.resource["group_id"]
            of_labels = samples.setdefault((name, tuple(labels)), {})
            of_labels.setdefault((*who, *labels.values()), value.value)
        left -= min(left, len(row.values))
    return [
        Family(
            name,
            kinds[name],
            "As a client measured it: pushed by the client (KIP-714).",
            (*_LABELS, *labels),
            [Sample(values, number) for values, number in found.items()],
        )
        for (name, labels), found in samples.items()
    ]


def _labels(value: ClientValue) -> dict[str, str]:
    named = ((_sanitized(key), text) for key, text in value.attributes)
    return {name: text for name, text in named if name not in _RESERVED and text}


@lru_cache(maxsize=4096)  # few names, in tens of thousands of series
def _sanitized(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)


# --- beside a group ---


class Measure(msgspec.Struct, frozen=True):
    """The metrics that one client has pushed."""

    instance_id: str
    client_id: str
    host: str
    member_id: str  # empty: it is one of several members with this client id and address
    software: str
    seconds_ago: float
    shown: dict[str, str]
    every: list[tuple[str, str]]  # names and values


def measures(
    snapshot: Snapshot, group: str, members: Iterable[GroupMember], now_ms: int
) -> list[Measure]:
    """Metrics of the members of a group, sorted by client id."""
    by_id: set[str] = set()
    by_client: dict[tuple[str, str], list[str]] = {}
    for each in members:
        by_id.add(each.member_id)
        by_client.setdefault((each.client_id, each.host), []).append(each.member_id)
    found = []
    for row in clients_of(snapshot):
        said = row.resource
        if row.is_over or said.get("group_id", group) != group:
            continue
        whose = by_client.get((row.client_id, row.host), [])
        if "group_member_id" in said:
            whose = [each for each in (said["group_member_id"],) if each in by_id]
        if whose:
            found.append(_measure(row, whose, now_ms))
    return sorted(found, key=lambda each: (each.client_id, each.member_id))


def _measure(row: ClientRow, whose: Sequence[str], now_ms: int) -> Measure:
    worst: dict[str, float] = {}
    for value in row.values:
        worst[value.name] = max(value.value, worst.get(value.name, value.value))
    return Measure(
        row.instance_id,
        row.client_id,
        row.host,
        whose[0] if len(whose) == 1 else "",
        f"{row.software_name} {row.software_version}".strip(),
        max(now_ms - row.pushed_ms, 0) / 1000,
        {
            word: f"{worst[name]:.0%}" if is_ratio else f"{worst[name]:,.1f} ms"
            for word, name, is_ratio in SHOWN
            if name in worst
        },
        [
            (_shown_name(value.name, value.attributes), f"{value.value:,.6g}")
            for value in sorted(row.values, key=lambda each: (each.name, each.attributes))
        ],
    )


def _shown_name(name: str, attributes: tuple[tuple[str, str], ...]) -> str:
    return " ".join([name, *(f"{key}={text}" for key, text in attributes)])
