"""Metrics that clients have pushed to workers (KIP-714). Pure.

A client that moves from one worker to another has pushed to both: the last push counts. Names come
from clients: the broker has bounded them, here they become names of Prometheus, and where two
become the same one, the first is taken.
"""

from __future__ import annotations

import re
from functools import lru_cache

from moldau.broker.metrics.document import ClientRow, ClientValue, Family, Kind, Sample
from moldau.ops.http.snapshot import Snapshot

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
