"""Fixtures of the compatibility tests: a client per module, a session per test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

# Expectations that several clients share live there; pytest explains their failures too.
pytest.register_assert_rewrite("tests.support.compat", "tests.support.clients")

from tests.support.clients.base import Client  # noqa: E402
from tests.support.compat.session import Session  # noqa: E402
from tests.support.running import Broker  # noqa: E402


@pytest.fixture
def kafka(client: Client, moldau: Broker) -> Iterator[Session]:
    """The module's client at the shared broker."""
    session = Session(client, moldau)
    yield session
    session.close()
