"""What tests of the command line share: the command, the store of its broker, and free names."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
import redis

from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker

_names = (f"cli-{os.getpid()}-{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def cli(moldau: Broker) -> Cli:
    return Cli(moldau)


@pytest.fixture
def store(moldau: Broker) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(moldau.store_url) as made:
        yield made


@pytest.fixture
def name() -> str:
    """A name for a topic, a stream or a group of the test's own."""
    return next(_names)
