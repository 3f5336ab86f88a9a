"""What clients are charged, and how long they wait."""

from __future__ import annotations

import pytest

from moldau.broker.security import quota_usage
from moldau.broker.security.quota_entities import (
    DEFAULT,
    FETCH,
    MUTATION,
    PRODUCE,
    REQUEST,
    Entity,
    QuotaTable,
    Values,
)
from moldau.broker.security.quota_rates import Windows
from moldau.broker.security.quota_usage import ClientUsage, Usages

WINDOWS = Windows()


def usages(quotas: dict[Entity, Values]) -> Usages:
    return Usages(QuotaTable(quotas), WINDOWS, WINDOWS)


def usage(of: Usages, user: str = "alice", client_id: str = "app") -> ClientUsage:
    found = of.of(user, client_id, 0)
    assert found is not None
    return found


def test_a_client_without_a_quota_is_not_measured() -> None:
    kept = usages({Entity("alice"): {PRODUCE: 1.0}})
    assert kept.of("bob", "app", 0) is None


def test_client_ids_of_a_user_share_its_quota() -> None:
    kept = usages({Entity("alice"): {PRODUCE: 1000.0}})
    usage(kept, client_id="one").produced(10_000, 0)
    assert usage(kept, client_id="two").produced(1_000, 0) == 1000


def test_each_user_of_the_default_has_a_quota_of_its_own() -> None:
    kept = usages({Entity(DEFAULT): {PRODUCE: 1000.0}})
    usage(kept, "alice").produced(10_000, 0)
    assert usage(kept, "bob").produced(1_000, 0) == 0


def test_what_was_used_counts_under_a_new_limit() -> None:
    kept = usages({Entity("alice"): {PRODUCE: 1000.0}})
    usage(kept).produced(10_000, 0)
    kept.use(QuotaTable({Entity("alice"): {PRODUCE: 500.0}}))
    assert usage(kept).produced(0, 0) == 10_000


def test_a_fetch_over_the_limit_is_not_counted() -> None:
    kept = usages({Entity("alice"): {FETCH: 1000.0}})
    client = usage(kept)
    assert client.fetch_room == 10_000
    assert client.fetching(8_000, 0) == 0
    assert client.fetching(8_000, 0) == 6_000
    assert client.fetching(8_000, 0) == 6_000  # the refused one was taken out again
    assert client.fetching(2_000, 0) == 0


def test_a_batch_larger_than_all_windows_is_sent_once_nothing_else_was() -> None:
    client = usage(usages({Entity("alice"): {FETCH: 10.0}}))
    assert client.fetching(1_000, 0) == 0
    assert client.fetching(1_000, 5_000) > 0
    assert client.fetching(1_000, 12_000) == 0


def test_a_wait_for_time_used_is_bounded_by_one_window() -> None:
    client = usage(usages({Entity("alice"): {REQUEST: 1.0}}))
    assert client.busy(0.05, 0) == 0
    client.was_busy(0.05, 0)
    assert client.busy(0.001, 0) == 100  # 10.1 % seconds of 10
    assert client.busy(60.0, 0) == 1000


def test_mutations() -> None:
    client = usage(usages({Entity("alice"): {MUTATION: 1.0}}))
    assert client.mutations_wait(0) == 0
    assert client.mutated(11, 0) == 0
    assert client.mutations_wait(0) == 0
    assert client.mutated(4, 0) == 4000
    assert client.mutations_wait(1000) == 3000


def test_only_what_has_a_limit_is_measured() -> None:
    client = usage(usages({Entity("alice"): {PRODUCE: 1.0}}))
    assert client.fetch_room is None
    assert client.fetching(1 << 40, 0) == client.busy(1e9, 0) == client.mutated(99, 0) == 0


def test_made_up_names_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_usage, "MAX_CLIENTS", 50)
    monkeypatch.setattr(quota_usage, "MAX_RATES", 100)
    kept = usages({Entity(None, DEFAULT): {PRODUCE: 1000.0, MUTATION: 1.0}})
    for number in range(1000):
        usage(kept, client_id=f"client-{number}").produced(5_000, 0)
    assert len(kept.rates) <= 101
    assert len(kept.buckets) <= 101
    # Those that came too late share one rate.
    assert usage(kept, client_id="late").produced(1, 0) > 0
    kept.forget_unused(WINDOWS.span_ms)
    assert not kept.rates
    assert usage(kept, client_id="late").produced(1, WINDOWS.span_ms) == 0
