"""The results of `moldau bench growth`: a picture as PNG and SVG, a table as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moldau.loadtest.bench.harness.figures import short
from moldau.loadtest.bench.harness.target import TargetError


def plot(rows: Sequence[dict[str, Any]], directory: str) -> list[str]:
    """One picture with a panel for each quantity, as PNG and SVG; returns the file names."""
    try:
        import matplotlib
    except ImportError:
        raise TargetError("plots need matplotlib: install the extra `load`") from None
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    names = list(dict.fromkeys(row["what"] for row in rows))
    columns = 3
    lines = -(-len(names) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(11, 3.2 * lines), squeeze=False)
    for name, panel in zip(names, axes.flat, strict=False):
        _panel(panel, name, [row for row in rows if row["what"] == name])
    for panel in list(axes.flat)[len(names) :]:
        panel.set_visible(False)
    figure.suptitle("CPU of one request (us, median and range) as things grow")
    figure.tight_layout()
    Path(directory).mkdir(parents=True, exist_ok=True)
    files = [str(Path(directory) / f"growth.{kind}") for kind in ("png", "svg")]
    for file in files:
        figure.savefig(file, dpi=90)
    pyplot.close(figure)
    return files


def _panel(panel: Any, name: str, rows: list[dict[str, Any]]) -> None:
    for run in dict.fromkeys(row["run"] for row in rows):
        points = [row for row in rows if row["run"] == run]
        middle = [row["us"]["median"] for row in points]
        below = [row["us"]["median"] - row["us"]["min"] for row in points]
        above = [row["us"]["max"] - row["us"]["median"] for row in points]
        values = [row["x"] for row in points]
        panel.errorbar(values, middle, [below, above], marker="o", ms=3, capsize=2, label=run)
    panel.set_xscale("log")
    if name == "batch bytes":
        panel.set_yscale("log")
    else:
        panel.set_ylim(0, 1.4 * max(row["us"]["max"] for row in rows))  # room for the legend
    panel.minorticks_off()
    panel.set_title(name)
    panel.set_ylabel("us of CPU")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=7, loc="upper left")


def write_table(rows: Sequence[dict[str, Any]], directory: str) -> str:
    """A line for each operation, its costs in the order of growth; returns the file name."""
    lines = ["| what grows | what is done | CPU of one, us |", "|---|---|---|"]
    for what in dict.fromkeys(row["what"] for row in rows):
        of_it = [shown(row) for row in rows if row["what"] == what]
        for run in dict.fromkeys(row["run"] for row in of_it):
            points = [row for row in of_it if row["run"] == run]
            sizes = ", ".join(row["x"] for row in points)
            costs = ", ".join(short(row["us"]["median"]) for row in points)
            lines.append(f"| {what}: {sizes} | {run} | {costs} |")
    Path(directory).mkdir(parents=True, exist_ok=True)
    file = Path(directory) / "growth.md"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row as tables show it: bytes with their unit."""
    value, unit = row["x"], ""
    if row["what"].endswith("bytes"):
        unit = " B"
        for larger in (" KB", " MB", " GB"):
            if value >= 1000:
                value, unit = value // 1000, larger
    return {**row, "x": f"{value:,}{unit}"}
