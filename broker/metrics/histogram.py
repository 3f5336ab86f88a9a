"""A histogram whose buckets are powers of two: an observation is one shift and one addition."""

from __future__ import annotations

from moldau.broker.metrics.document import Family, HistogramSample, Kind

# Buckets of durations: up to 2**14 ns = 16 us, then twice as long each, up to 17 s.
FIRST_BITS, LAST_BITS = 14, 34
DURATION_BOUNDS = [(1 << bits) / 1e9 for bits in range(FIRST_BITS, LAST_BITS + 1)]


def new_counts() -> list[int]:
    """Counts by the number of bits of a duration in nanoseconds: `counts[ns.bit_length()] += 1`."""
    return [0] * 65


class DurationHistogram:
    """Durations in nanoseconds. The hot path increments `counts` without a call, and adds up
    nothing: the sum is computed from the middles of the buckets."""

    __slots__ = ("counts",)

    def __init__(self, counts: list[int] | None = None) -> None:
        self.counts = new_counts() if counts is None else counts

    def observe(self, nanoseconds: int) -> None:
        self.counts[nanoseconds.bit_length()] += 1

    def sample(self, labels: tuple[str, ...] = ()) -> HistogramSample:
        counts = self.counts
        shown = [
            sum(counts[: FIRST_BITS + 1]),
            *counts[FIRST_BITS + 1 : LAST_BITS + 1],
            sum(counts[LAST_BITS + 1 :]),
        ]
        total = sum(count * 0.75 * (1 << bits) for bits, count in enumerate(counts) if count)
        return HistogramSample(labels, shown, total / 1e9)


def duration_family(
    name: str,
    text: str,
    labels: tuple[str, ...],
    histograms: list[HistogramSample],
    *,
    by_role: bool = False,
) -> Family:
    return Family(
        name,
        Kind.HISTOGRAM,
        text,
        labels,
        histograms=histograms,
        bounds=DURATION_BOUNDS,
        by_role=by_role,
    )
