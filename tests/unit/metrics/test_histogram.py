"""Durations in buckets that are powers of two."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.metrics.histogram import DURATION_BOUNDS, DurationHistogram


@given(st.lists(st.integers(0, 1 << 40), max_size=50))
def test_every_observation_is_in_the_bucket_below_whose_bound_it_lies(durations: list[int]) -> None:
    histogram = DurationHistogram()
    for each in durations:
        histogram.observe(each)
    sample = histogram.sample(("x",))
    assert sum(sample.counts) == len(durations)
    # The sum is that of the buckets' middles: each within a half of what lies in it.
    exact = sum(durations) / 1e9
    assert abs(sample.total - exact) <= exact / 2 + len(durations) * 1e-9
    for at, bound in enumerate(DURATION_BOUNDS):
        below = sum(each < bound * 1e9 for each in durations)
        assert sum(sample.counts[: at + 1]) == below
