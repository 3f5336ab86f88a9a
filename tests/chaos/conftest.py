"""Brokers whose processes are killed have fresh ones and a spare, as in production.

Modules about what stores lose, about groups and about transactions do not depend on how long a
worker takes to start: their brokers are forked like others of the tests. A worker of theirs is back
as soon as one that was a spare.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.brokers.running import Broker

FORKED = (
    "test_failover_idempotent",
    "test_full_disk",
    "test_leader_stopped",
    "test_lost_everything_load",
    "test_lost_tail",
    "test_lost_tail_epochs",
    "test_lost_tail_groups",
    "test_lost_tail_load",
    "test_lost_tail_many",
    "test_lost_tail_native",
    "test_lost_tail_replicas",
    "test_lost_tail_transactions",
)


def is_about_processes(path: Path) -> bool:
    return path.stem not in FORKED


@pytest.fixture(scope="module", autouse=True)
def _as_in_production(request: pytest.FixtureRequest) -> None:
    if is_about_processes(request.path):
        request.getfixturevalue("fresh_processes")


@pytest.fixture
def start_moldau(
    request: pytest.FixtureRequest, start_moldau: Callable[..., Broker]
) -> Callable[..., Broker]:
    if is_about_processes(request.path):
        return partial(start_moldau, spare_process=None)
    return start_moldau
