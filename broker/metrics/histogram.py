"""A histogram whose buckets are powers of two: an observation is one shift and one addition."""

from __future__ import annotations

from broker.metrics.document import Family, HistogramSample, Kind

# Buckets of durations: up to 2**14 ns = 16 us, then twice as long each, up to 17 s.
FIRST_BITS, LAST_BITS = 14, 34
DURATION_BOUNDS = [(1 << bits) / 1e9 for bits in range(FIRST_BITS, LAST_BITS + 1)]


class DurationHistogram:
    """Durations in nanoseconds. The hot path may do what `observe` does without the call."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * 65  # by the number of bits
        self.total = 0

    def observe(self, nanoseconds: int) -> None:
        self.counts[nanoseconds.bit_length()] += 1
        self.total += nanoseconds

    def sample(self, labels: tuple[str, ...] = ()) -> HistogramSample:
        counts = self.counts
        shown = [
            sum(counts[: FIRST_BITS + 1]),
            *counts[FIRST_BITS + 1 : LAST_BITS + 1],
            sum(counts[LAST_BITS + 1 :]),
        ]
        return HistogramSample(labels, shown, self.total / 1e9)


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
