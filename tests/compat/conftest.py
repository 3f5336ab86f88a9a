"""Fixtures of the compatibility tests: a client per module, a session per test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.brokers.running import Broker
from tests.support.clients.base import Client
from tests.support.compat.session import Session


@pytest.fixture
def kafka(client: Client, moldau: Broker) -> Iterator[Session]:
    """The module's client at the shared broker."""
    session = Session(client, moldau)
    yield session
    session.close()
