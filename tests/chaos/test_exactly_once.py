"""Consume, transform, produce: every record exactly once, whoever is killed (KIP-98, KIP-447)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.exactly_once import SETTINGS, Application, Chaos, Feed
from tests.support.brokers.running import Broker
from tests.support.stores.lossy import StorePair, programs

Start = Callable[..., Broker]
KILLS = ("instance", "worker", "instance", "worker", "router", "store")


def run(
    start: Start,
    directory: Path,
    what: tuple[str, ...],
    seconds: float,
    seed: int,
    *,
    pair: StorePair | None = None,
    **options: str,
) -> None:
    broker = start(workers=2, broker=SETTINGS, **options)
    feed = Feed(broker)
    with Application(directory, broker.bootstrap) as application:
        chaos = Chaos(broker, application, what, seed, pair)
        chaos.run(seconds)
        numbers = application.finish(broker, feed)
        print(
            f"{numbers:,} records exactly once, in at least {application.transactions():,} "
            f"transactions, {application.errors().count('aborted: '):,} aborted, "
            f"{application.errors().count('delivered again')} delivered again; {dict(chaos.done)}"
        )
        assert application.transactions() > 20, application.errors()
    assert "Traceback" not in broker.log(), broker.log()


def test_everything_is_killed_at_random(start_moldau: Start, short_tmp_path: Path) -> None:
    run(start_moldau, short_tmp_path, KILLS, 15, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("advertise", ["workers", "router"])
@pytest.mark.parametrize("seed", [11, 12])
def test_everything_is_killed_for_a_minute(
    start_moldau: Start, short_tmp_path: Path, seed: int, advertise: str
) -> None:
    run(start_moldau, short_tmp_path, KILLS, 60, seed, advertise=advertise)


def test_7_16_workers_are_stopped_while_markers_are_due(
    start_moldau: Start, short_tmp_path: Path
) -> None:
    run(start_moldau, short_tmp_path, ("stop",), 12, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [21, 22])
def test_7_16_workers_are_stopped_and_killed_for_a_minute(
    start_moldau: Start, short_tmp_path: Path, seed: int
) -> None:
    what = ("stop", "stop", "instance", "worker", "store")
    run(start_moldau, short_tmp_path, what, 60, seed)


@pytest.mark.parametrize(
    ("seconds", "what"),
    [
        pytest.param(12, ("pause",), id="short"),
        pytest.param(60, ("pause", "worker"), id="minute", marks=pytest.mark.slow),
    ],
)
def test_instances_come_back_after_others_took_over(
    start_moldau: Start, short_tmp_path: Path, seconds: float, what: tuple[str, ...]
) -> None:
    """Their transactional ids are good, their generation of the group is not (KIP-447)."""
    run(start_moldau, short_tmp_path, what, seconds, seed=41)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[StorePair]:
    with StorePair(tmp_path, programs()["valkey"]) as made:
        yield made


@pytest.mark.parametrize(
    ("seconds", "what"),
    [
        pytest.param(12, ("master",), id="short", marks=pytest.mark.slow),
        pytest.param(60, ("master", "instance", "worker"), id="minute", marks=pytest.mark.slow),
    ],
)
def test_masters_die_beside_a_replica(
    pair: StorePair,
    start_moldau: Start,
    short_tmp_path: Path,
    seconds: float,
    what: tuple[str, ...],
) -> None:
    """acks=all, and decisions that a replica has before anyone hears of them."""
    run(start_moldau, short_tmp_path, what, seconds, seed=31, pair=pair, redis=pair.url)
