"""Metrics that members of a group have pushed (KIP-714), for the page of the group. Pure.

Java says in which group a client is, and as which member; librdkafka only the group. Where a client
does not say, its client id and address have to be those of a member.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from moldau.broker.metrics.document import ClientRow
from moldau.ops.http.clients import clients_of
from moldau.ops.http.snapshot import Snapshot
from moldau.ops.operations.groups import GroupMember

# Of the metrics that all clients have: the word for it, its name, and whether it is a ratio; the
# others are milliseconds. The worst node counts.
SHOWN = (
    ("poll idle", "consumer.poll.idle.ratio.avg", True),
    ("fetch", "consumer.fetch.manager.fetch.latency.avg", False),
    ("commit", "consumer.coordinator.commit.latency.avg", False),
    ("rebalance", "consumer.coordinator.rebalance.latency.avg", False),
    ("requests", "consumer.node.request.latency.avg", False),
)


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
            (_name(value.name, value.attributes), f"{value.value:,.6g}")
            for value in sorted(row.values, key=lambda each: (each.name, each.attributes))
        ],
    )


def _name(name: str, attributes: tuple[tuple[str, str], ...]) -> str:
    return " ".join([name, *(f"{key}={text}" for key, text in attributes)])
