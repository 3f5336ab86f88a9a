"""Brokers that are killed have a spare process, as in production."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.support.brokers.running import Broker


@pytest.fixture
def start_moldau(start_moldau: Callable[..., Broker]) -> Callable[..., Broker]:
    return partial(start_moldau, spare_process=None)
