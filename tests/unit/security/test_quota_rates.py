"""Rates over windows, throttle times and token buckets, as in Kafka."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.broker.security.quota_rates import (
    MAX_THROTTLE_MS,
    Rate,
    TokenBucket,
    Windows,
    in_reply,
)

WINDOWS = Windows()


def test_missing_windows_count_as_time_without_use() -> None:
    rate = Rate(WINDOWS)
    rate.record(10_000, now=5)
    assert rate.per_second(5) == 1000  # over ten full windows, not over nothing
    assert rate.throttle_ms(1000, 5) == 0
    rate.record(500, now=5)
    # X = (O - T) / T * W = (1050 - 1000) / 1000 * 10 s
    assert rate.throttle_ms(1000, 5) == pytest.approx(500)


def test_the_throttle_time_brings_the_rate_back_to_the_limit() -> None:
    rate = Rate(WINDOWS)
    for second in range(10):
        rate.record(2000, now=second * 1000)
    now = 9_500
    wait = rate.throttle_ms(1000, now)
    assert wait == pytest.approx((rate.per_second(now) - 1000) / 1000 * rate.elapsed_ms(now))
    assert wait > 0
    assert rate.throttle_ms(1000, now + wait) == pytest.approx(0, abs=1)


def test_what_lies_behind_the_windows_no_longer_counts() -> None:
    rate = Rate(WINDOWS)
    rate.record(1_000_000, now=0)
    rate.record(7, now=900)  # same window: it ends with its last event
    assert rate.used(900 + WINDOWS.span_ms - 1) == 1_000_007
    assert rate.used(900 + WINDOWS.span_ms) == 0
    assert rate.is_unused(900 + WINDOWS.span_ms)


def test_a_window_begins_with_the_first_event_in_it() -> None:
    rate = Rate(WINDOWS)
    rate.record(1, now=300)
    rate.record(1, now=1299)
    rate.record(1, now=1300)  # the second window
    assert rate.used(1299 + WINDOWS.span_ms) == 1


def test_what_is_taken_out_again_does_not_count() -> None:
    rate = Rate(WINDOWS)
    rate.record(500, now=0)
    rate.record(9_500_000, now=10)
    rate.record(-9_500_000, now=10)
    assert rate.used(20) == 500


@settings(max_examples=30, deadline=None)
@given(
    limit=st.integers(500, 1_000_000),
    shares=st.lists(st.floats(0.02, 0.5), min_size=1, max_size=20),
    busy_ms=st.integers(0, 5),
)
def test_a_client_that_waits_comes_to_its_rate(
    limit: int, shares: list[float], busy_ms: int
) -> None:
    """It sends as fast as it can, up to half of what a second allows at a time, and waits
    as long as it is asked to. (Larger ones overshoot by more: a window is dropped whole.)"""
    sizes = [int(limit * share) for share in shares]
    rate = Rate(WINDOWS)
    now = 0.0
    sent = 0
    for size in itertools.cycle(sizes):
        rate.record(size, now)
        sent += size
        now += max(in_reply(rate.throttle_ms(limit, now)), busy_ms)
        if now > 120_000:
            break
    # It may use at first what ten windows allow.
    assert 0.97 * limit <= sent * 1000 / now <= 1.1 * limit


# --- token buckets ---


def test_a_bucket_begins_full_and_holds_all_windows() -> None:
    bucket = TokenBucket(WINDOWS)
    limit = 2.0
    assert bucket.throttle_ms(limit, 0) == 0
    bucket.record(22, limit, 0)
    assert bucket.throttle_ms(limit, 0) == 0  # empty, not overdrawn
    bucket.record(10, limit, 0)
    assert bucket.throttle_ms(limit, 0) == 5000
    assert bucket.throttle_ms(limit, 4000) == 1000
    assert bucket.throttle_ms(limit, 5000) == 0
    assert not bucket.is_full(6000)
    assert bucket.is_full(60_000)


@given(
    limit=st.floats(0.1, 100),
    taken=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5_000)), min_size=1),
)
def test_a_client_that_waits_takes_no_more_than_bucket_and_rate(
    limit: float, taken: list[tuple[int, int]]
) -> None:
    bucket = TokenBucket(WINDOWS)
    now = 0.0
    total = 0
    for amount, idle in taken:
        now += bucket.throttle_ms(limit, now) + idle
        bucket.record(amount, limit, now)
        total += amount
    assert total <= limit * (now + WINDOWS.span_ms) / 1000 + taken[-1][0] + 1e-6


def test_a_throttle_time_fits_its_field() -> None:
    assert in_reply(0.4) == 0
    assert in_reply(1e30) == MAX_THROTTLE_MS
