"""What tests of links between workers share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers.running import remove_dir, short_temp_dir


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A directory with a short path: those of unix sockets are limited."""
    directory = short_temp_dir()
    yield directory
    remove_dir(directory)
