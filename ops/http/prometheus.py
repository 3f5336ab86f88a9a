"""Prometheus' text format, version 0.0.4: families of samples to text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moldau.broker.metrics.document import Family, HistogramSample, Kind

_INFINITE = float("inf")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text_of(families: Iterable[Family]) -> str:
    """Families of the same name are written as one: the format wants their samples together."""
    merged: dict[str, list[Family]] = {}
    for family in families:
        merged.setdefault(family.name, []).append(family)
    lines: list[str] = []
    escaped = _Escaped()
    for name in sorted(merged):
        first = merged[name][0]
        lines.append(f"# HELP {name} {_escaped_help(first.help)}")
        lines.append(f"# TYPE {name} {first.kind}")
        for family in merged[name]:
            if family.kind is Kind.HISTOGRAM:
                for histogram in family.histograms:
                    lines += _histogram_lines(family, histogram)
            else:
                lines += _sample_lines(family, escaped)
    lines.append("")
    return "\n".join(lines)


class _Escaped(dict[str, str]):
    """Values of labels as they are written: few, in tens of thousands of lines."""

    def __missing__(self, value: str) -> str:
        found = self[value] = _escaped(value)
        return found


def _sample_lines(family: Family, escaped: _Escaped) -> list[str]:
    if not family.labels:
        return [f"{family.name} {number(sample.value)}" for sample in family.samples]
    pattern = ",".join(f'{name}="%s"' for name in family.labels)
    line = f"{family.name}{{{pattern}}} %s"
    value_of = escaped.__getitem__
    return [
        line % (*map(value_of, sample.labels), number(sample.value)) for sample in family.samples
    ]


def _histogram_lines(family: Family, histogram: HistogramSample) -> list[str]:
    names = (*family.labels, "le")
    lines = []
    below = 0
    for count, bound in zip(histogram.counts, (*family.bounds, float("inf")), strict=True):
        below += count
        labels = labels_text(names, (*histogram.labels, number(bound)))
        lines.append(f"{family.name}_bucket{labels} {below}")
    labels = labels_text(family.labels, histogram.labels)
    lines.append(f"{family.name}_sum{labels} {number(histogram.total)}")
    lines.append(f"{family.name}_count{labels} {below}")
    return lines


def labels_text(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    pairs = zip(names, values, strict=True)
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def number(value: float) -> str:
    if value == _INFINITE:
        return "+Inf"
    whole = int(value)
    return str(whole) if whole == value else repr(value)


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
