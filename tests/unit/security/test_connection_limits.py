"""How many connections there may be, and how fast they may come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.private.api import answer_body
from moldau.broker.private.table import CONNECTION_LIMITS
from moldau.broker.security import connection_limits
from moldau.broker.security.connection_limits import ConnectionCounts, LimitsInForce
from moldau.broker.security.quota_rates import Windows
from moldau.broker.settings.processes import ConnectionLimits

WINDOWS = Windows()


def counts(**limits: object) -> ConnectionCounts:
    return ConnectionCounts(ConnectionLimits(**limits), WINDOWS)  # type: ignore[arg-type]


def enter(kept: ConnectionCounts, ip: str, now: float = 0, *, known: bool = True) -> str | None:
    return kept.enter(ip, now, is_authenticated=known)


def test_the_total() -> None:
    kept = counts(total=2)
    assert [enter(kept, ip) for ip in ("a", "b", "c")] == [None, None, "max.connections"]
    kept.leave("a", is_authenticated=True)
    assert enter(kept, "c") is None


def test_by_address() -> None:
    kept = counts(per_ip=1, overrides={"b": 2, "c": 0})
    assert [enter(kept, "a") for _ in range(2)] == [None, "max.connections.per.ip"]
    refused = "max.connections.per.ip.overrides"
    assert [enter(kept, "b") for _ in range(3)] == [None, None, refused]
    assert enter(kept, "c") == refused


def test_limits_that_are_told_to_another_process() -> None:
    limits = ConnectionLimits(total=5, per_ip=2, overrides={"b": 1})
    told = CONNECTION_LIMITS.read_answer(
        answer_body(CONNECTION_LIMITS.answer(LimitsInForce(limits, {"a": 3.0, "": 9.0})))
    )
    assert [told.rate_of(ip) for ip in ("a", "b")] == [3, 9]
    assert LimitsInForce(limits).rate_of("a") is None
    kept = counts()
    kept.use(told)
    assert [enter(kept, "b") for _ in range(2)] == [None, "max.connections.per.ip.overrides"]
    assert [enter(kept, "a") for _ in range(3)] == [None, None, "max.connections.per.ip"]


def test_a_quarter_for_those_that_have_not_authenticated() -> None:
    kept = counts(total=8)
    admitted = [enter(kept, "a", known=False) for _ in range(3)]
    assert admitted[:2] == [None, None]
    assert admitted[2] is not None
    assert enter(kept, "a") is None  # others come in
    kept.authenticate()
    assert enter(kept, "a", known=False) is None
    kept.leave("a", is_authenticated=False)
    assert enter(kept, "a", known=False) is None


def test_the_rate_of_all() -> None:
    kept = counts(creation_rate=2)
    results = [enter(kept, f"{n}") for n in range(30)]
    assert results == [None] * 20 + ["max.connection.creation.rate"] * 10  # ten windows' worth
    # Two a second from then on.
    assert [enter(kept, "later", now) is None for now in (499, 500, 501)] == [False, True, False]


def test_the_rate_of_an_address() -> None:
    kept = counts()
    kept.rate_of = {"a": 1.0}.get
    assert [enter(kept, "a") is None for _ in range(12)] == [True] * 10 + [False] * 2
    assert all(enter(kept, "b") is None for _ in range(100))
    assert kept.total == 110


def test_addresses_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "MAX_RATES", 10)
    kept = counts()
    kept.rate_of = lambda _: 100.0
    for number in range(100):
        assert enter(kept, f"{number}") is None
        kept.leave(f"{number}", is_authenticated=True)
    assert len(kept._rates) <= 11
    assert not kept._by_ip


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60), st.integers(0, 12))
def test_counts_return_to_zero(events: list[tuple[str, bool]], total: int) -> None:
    kept = counts(total=total, per_ip=3)
    inside: list[tuple[str, bool]] = []
    for ip, known in events:
        if enter(kept, ip, known=known) is None:
            inside.append((ip, known))
        elif inside:
            ip, known = inside.pop(0)
            kept.leave(ip, is_authenticated=known)
        assert kept.total == len(inside) <= total
    for ip, known in inside:
        kept.leave(ip, is_authenticated=known)
    assert (kept.total, kept._unauthenticated, kept._by_ip) == (0, 0, {})


def test_what_would_be_refused_is_known_before_and_counts_nothing() -> None:
    kept = counts(total=100, per_ip=3, creation_rate=2)
    kept.rate_of = {"slow": 1.0}.get
    for _ in range(1000):
        assert kept.would_refuse("a", 0.0) is None
    while enter(kept, "a") is None:
        assert kept.total <= 3
    assert kept.would_refuse("a", 0.0) == "max.connections.per.ip"
    assert kept.would_refuse("b", 0.0) is None
    while enter(kept, "slow") is None:
        kept.leave("slow", is_authenticated=True)
    assert kept.would_refuse("slow", 0.0) == "the quota connection_creation_rate"
    for number in range(100):
        enter(kept, f"{number}")
    assert kept.would_refuse("c", 0.0) == "max.connection.creation.rate"
    assert kept.would_refuse("c", 20_000.0) is None
