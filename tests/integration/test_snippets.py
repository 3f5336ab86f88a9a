"""The Python programs of the README and the documentation, as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing import Broker, broker
from tests.support.brokers.running import ROOT, clean_environment

README = ROOT / "README.md"
START = ROOT / "ops/docs/start"
CLIENTS = START / "clients.md"
TESTS = START / "python-tests.md"


def programs(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def kafka() -> Iterator[Broker]:
    with broker() as started:
        yield started


def run(*words: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=directory, env=clean_environment(), timeout=120,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("page", "place"),
    [(README, 0), (CLIENTS, 0), (CLIENTS, 1), (CLIENTS, 2)],
    ids=["readme", "confluent", "kafka-python", "aiokafka"],
)
def test_programs_of_clients(page: Path, place: int, kafka: Broker, tmp_path: Path) -> None:
    topic = f"greetings-{uuid.uuid4().hex}"
    program = programs(page)[place]
    for old, new in {
        "localhost:9092": kafka.bootstrap,
        '"greetings"': f'"{topic}"',
        '"readers"': f'"{topic}"',
    }.items():
        assert old in program
        program = program.replace(old, new)
    assert run("-c", program, directory=tmp_path) == "b'world'\n"


def test_a_broker_for_tests(tmp_path: Path) -> None:
    run("-c", programs(TESTS)[0], directory=tmp_path)


def test_tests_with_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(programs(TESTS)[1])
    assert "2 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", directory=tmp_path)
