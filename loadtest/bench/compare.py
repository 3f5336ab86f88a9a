"""`moldau bench --compare A B`: the figures of two runs (--json), and their ratio B / A."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moldau.loadtest.bench.harness.figures import short

_KEYS = ("bench", "size", "run", "workers", "connections", "x", "what")


class NotAResult(ValueError):
    """The file is not the output of `moldau bench --json`."""


def read_results(path: str) -> dict[tuple[str, ...], dict[str, float]]:
    """Figures by what was measured; of `bench all` those of every benchmark."""
    try:
        report = json.loads(Path(path).read_text())
        parts = report.get("benches", [report])
        found = {}
        for part in parts:
            for row in part["rows"]:
                name = (part["bench"], *(str(row[key]) for key in _KEYS if key in row))
                found[name] = {key: _number(value) for key, value in row.items()}
    except (AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise NotAResult(f"{path} is not the output of `moldau bench --json`: {error!r}") from None
    return {
        name: {key: value for key, value in figures.items() if value is not None}
        for name, figures in found.items()
    }


def _number(value: Any) -> float | None:
    if isinstance(value, dict):
        return float(value["median"])
    return value if isinstance(value, float) else None


def compare(first: str, second: str) -> list[dict[str, Any]]:
    """A row for each figure that both have. Raises NotAResult, OSError."""
    one, other = read_results(first), read_results(second)
    rows: list[dict[str, Any]] = []
    for name, figures in one.items():
        for key, value in figures.items():
            against = other.get(name, {}).get(key)
            if against is None:
                continue
            rows.append(
                {
                    "bench": " ".join(name),
                    "figure": key,
                    "A": value,
                    "B": against,
                    "B / A": against / value if value else None,
                }
            )
    if not rows:
        raise NotAResult(f"{first} and {second} have no figure in common")
    return rows


def readable(row: dict[str, Any]) -> dict[str, str]:
    shown = {key: str(row[key]) for key in ("bench", "figure")}
    for key in ("A", "B"):
        shown[key] = short(row[key])
    shown["B / A"] = "n/a" if row["B / A"] is None else f"{row['B / A']:.2f}"
    return shown
