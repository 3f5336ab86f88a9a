"""Brokers whose processes are killed have fresh ones and a spare, as in production.

Modules in which only the store fails, or everything does at once, do not depend on how long a
worker takes to start: their brokers are forked like others of the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.brokers.running import Broker

ABOUT_STORES = (
    "test_failover_idempotent",
    "test_full_disk",
    "test_lost_everything_load",
    "test_lost_tail",
    "test_lost_tail_epochs",
    "test_lost_tail_load",
    "test_lost_tail_many",
    "test_lost_tail_native",
    "test_lost_tail_replicas",
)


def is_about_processes(path: Path) -> bool:
    return path.stem not in ABOUT_STORES


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
