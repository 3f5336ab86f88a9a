"""Whom a quota is for, and which of several counts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.security.quota_entities import (
    CONNECTION,
    DEFAULT,
    FETCH,
    PRODUCE,
    Entity,
    QuotaTable,
    Shared,
    read_canonical,
)

# Kafka's order, the most specific first, and with whom the limit is shared.
ORDER = [
    (Entity("alice", "app"), Shared("alice", "app")),
    (Entity("alice", DEFAULT), Shared("alice", "app")),
    (Entity("alice"), Shared("alice", None)),
    (Entity(DEFAULT, "app"), Shared("alice", "app")),
    (Entity(DEFAULT, DEFAULT), Shared("alice", "app")),
    (Entity(DEFAULT), Shared("alice", None)),
    (Entity(None, "app"), Shared(None, "app")),
    (Entity(None, DEFAULT), Shared(None, "app")),
]


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_most_specific_entity_counts(first: int) -> None:
    quotas = {entity: {PRODUCE: float(n + 1)} for n, (entity, _) in enumerate(ORDER[first:])}
    table = QuotaTable(quotas)
    assert table.limit(PRODUCE, "alice", "app") == (1.0, ORDER[first][1])
    assert table.limit(FETCH, "alice", "app") is None


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(range(len(ORDER)), 2)))
def test_each_key_is_looked_up_for_itself(one: int, other: int) -> None:
    table = QuotaTable({ORDER[one][0]: {FETCH: 5.0}, ORDER[other][0]: {PRODUCE: 7.0}})
    limits = table.limit(FETCH, "alice", "app"), table.limit(PRODUCE, "alice", "app")
    assert limits == ((5.0, ORDER[one][1]), (7.0, ORDER[other][1]))


def test_others_have_no_limit() -> None:
    table = QuotaTable({Entity("alice"): {PRODUCE: 1.0}, Entity(None, "app"): {PRODUCE: 1.0}})
    assert table.limit(PRODUCE, "bob", "other") is None
    assert table.limits_clients


def test_addresses() -> None:
    table = QuotaTable({Entity(ip="::1"): {CONNECTION: 5.0}})
    assert table.connection_rates == {"::1": 5}
    assert not table.limits_clients
    both = QuotaTable({**table.quotas, Entity(ip=DEFAULT): {CONNECTION: 9.0}})
    assert both.connection_rates == {"::1": 5, DEFAULT: 9}


names = st.none() | st.text(max_size=20)


@given(user=names, client_id=names, ip=names)
def test_canonical_texts_are_read_back(
    user: str | None, client_id: str | None, ip: str | None
) -> None:
    entity = Entity(user, client_id, ip)
    if entity != Entity():
        assert read_canonical(entity.canonical()) == entity


@pytest.mark.parametrize("text", ["", "user", "group=a", "user=a,", "=a"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an entity"):
        read_canonical(text)
