"""Fixtures for pytest: `moldau`, `moldau_function` and `moldau_secure`.

pytest finds them wherever Moldau is installed. Each process of pytest-xdist has brokers of its own.
Settings of the session's broker: override the fixture `moldau_config`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from moldau.testing.running import Broker


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("moldau", "brokers of Moldau")
    group.addoption(
        "--moldau-keep",
        action="store_true",
        help="keep the directories of brokers, with their data and logs",
    )
    group.addoption(
        "--moldau-log", action="store_true", help="print the log of each broker at its end"
    )


@pytest.fixture(scope="session")
def moldau_config() -> dict[str, object]:
    """Kafka's broker settings for the brokers of the session."""
    return {}


@pytest.fixture(scope="session")
def moldau(pytestconfig: pytest.Config, moldau_config: dict[str, object]) -> Iterator[Broker]:
    """A broker for the whole session."""
    with _running(pytestconfig, config=moldau_config) as started:
        yield started


@pytest.fixture(scope="session")
def moldau_secure(
    pytestconfig: pytest.Config, moldau_config: dict[str, object]
) -> Iterator[Broker]:
    """A broker with TLS, users and ACLs for the whole session."""
    with _running(pytestconfig, config=moldau_config, secure=True) as started:
        yield started


@pytest.fixture
def moldau_function(
    pytestconfig: pytest.Config, moldau_config: dict[str, object]
) -> Iterator[Broker]:
    """A broker for one test, which may kill and restart it."""
    with _running(pytestconfig, config=moldau_config) as started:
        yield started


@contextmanager
def _running(pytestconfig: pytest.Config, **arguments: Any) -> Iterator[Broker]:
    from moldau.testing.running import broker  # not before a test wants one

    keep = pytestconfig.getoption("--moldau-keep")
    with broker(keep=keep, **arguments) as started:
        try:
            yield started
        finally:
            if keep:
                print(f"\nmoldau: {started.directory} is kept")
            if pytestconfig.getoption("--moldau-log"):
                print(f"\nmoldau: the log of {started.bootstrap}\n{started.log()}")
