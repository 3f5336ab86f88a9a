"""Fixtures of the compatibility tests: a client per module, a session per test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clients.base import Client
from tests.support.compat.session import Session
from tests.support.running import Broker


@pytest.fixture
def kafka(client: Client, moldau: Broker) -> Iterator[Session]:
    """The module's client at the shared broker."""
    session = Session(client, moldau)
    yield session
    session.close()
