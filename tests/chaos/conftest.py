"""Brokers that are killed have fresh processes and a spare one, as in production."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.support.brokers.running import Broker


@pytest.fixture(scope="module", autouse=True)
def _as_in_production(fresh_processes: None) -> None: ...


@pytest.fixture
def start_moldau(start_moldau: Callable[..., Broker]) -> Callable[..., Broker]:
    return partial(start_moldau, spare_process=None)
