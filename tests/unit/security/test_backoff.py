"""Failed logins wait for their answer, longer with every failure."""

from __future__ import annotations

from moldau.broker.security.backoff import FORGOTTEN_AFTER_MS, MOST_MS, FailureDelays


def test_every_failure_of_an_address_waits_longer() -> None:
    delays = FailureDelays()
    waits = [delays.failed("a", 1000 * step, 100) for step in range(10)]
    assert waits[:6] == [100, 200, 400, 800, 1600, MOST_MS]
    assert set(waits[6:]) == {MOST_MS}
    assert delays.failed("b", 10_000, 100) == 100


def test_the_first_delay_is_configured() -> None:
    delays = FailureDelays()
    assert [delays.failed("a", 0, 0) for _ in range(3)] == [0, 200, 400]
    assert [delays.failed("b", 0, 5000) for _ in range(3)] == [5000] * 3


def test_an_address_is_forgotten_after_a_while() -> None:
    delays = FailureDelays()
    for _ in range(5):
        delays.failed("a", 0, 100)
    assert delays.failed("a", FORGOTTEN_AFTER_MS, 100) == 100


def test_the_table_is_bounded_and_forgets_the_oldest() -> None:
    delays = FailureDelays(most_addresses=3)
    for number in range(100):
        delays.failed(str(number), 0, 100)
    assert len(delays) == 3
    assert delays.failed("99", 0, 100) == 200
    assert delays.failed("50", 0, 100) == 100
