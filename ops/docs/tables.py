"""Writes the tables of reference/keys.md and reference/metrics.md.

    python ops/docs/tables.py                                     keys, from the code
    python ops/docs/tables.py http://127.0.0.1:8092/metrics       metrics too, from a running broker

Tests compare both pages with the code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.request import urlopen

from moldau.broker.settings.kafka import (
    BROKER_KEYS,
    CLIENT_METRICS_KEYS,
    GROUP_KEYS,
    TOPIC_KEYS,
    ConfigKey,
)

REFERENCE = Path(__file__).parent / "reference"
MARK = "<!-- From here on written by ops/docs/tables.py -->\n\n"


def keys_tables() -> str:
    return "\n".join(
        [
            *_table("Topics", TOPIC_KEYS.values()),
            *_table("Groups", GROUP_KEYS.values()),
            *_table("Subscriptions to clients' metrics", CLIENT_METRICS_KEYS.values()),
            *_table("Brokers", BROKER_KEYS.values()),
        ]
    )


def _table(title: str, keys: Iterable[ConfigKey]) -> list[str]:
    rows = [f"## {title}", "", "| key | default | meaning |", "| --- | --- | --- |"]
    for key in sorted(keys, key=lambda each: each.name):
        if key.inert:
            continue
        default = "" if key.default in (None, "") else f"`{key.default}`"
        if key.synonym is not None and key.synonym != key.name:
            default = f"{default} `{key.synonym}`".strip()
        remark = " *At start.*" if key.read_only and not key.set_by else ""
        if key.set_by:
            remark = f" *Follows from {key.set_by}.*"
        rows.append(f"| `{key.name}` | {default} | {_cell(key.documentation)}{remark} |")
    return [*rows, ""]


def metrics_of(text: str) -> dict[str, tuple[str, str]]:
    """Type and meaning of each metric in Prometheus' text."""
    meanings = dict(re.findall(r"^# HELP (\w+) (.*)$", text, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    return {name: (kinds[name], meanings[name]) for name in sorted(kinds)}


def metrics_table(text: str) -> str:
    rows = (
        f"| `{name}` | {kind} | {_cell(meaning)} |\n"
        for name, (kind, meaning) in metrics_of(text).items()
    )
    return "| metric | type | meaning |\n| --- | --- | --- |\n" + "".join(rows)


def replace_tables(name: str, tables: str) -> None:
    """Write the tables of a page in place of those that it has."""
    page = REFERENCE / name
    page.write_text(page.read_text("utf-8").partition(MARK)[0] + MARK + tables, "utf-8")


def _cell(text: str) -> str:
    """Text that is shown as it is in a table."""
    return re.sub(r"([|*_<\[\]])", r"\\\1", text)


if __name__ == "__main__":
    replace_tables("keys.md", keys_tables())
    for address in sys.argv[1:]:
        with urlopen(address) as answer:
            replace_tables("metrics.md", metrics_table(answer.read().decode()))
