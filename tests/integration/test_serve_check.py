"""`moldau serve --check`: what a start would do. It changes nothing."""

from __future__ import annotations

import os
import re
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from moldau.broker.store import keys
from moldau.broker.store.format import CURRENT
from tests.support.brokers.moldau_cli import Cli
from tests.support.brokers.running import Broker, as_json, clean_environment, free_ports, run_moldau
from tests.support.stores.redis_server import RedisServer, running_redis

Start = Callable[..., Broker]
OLD = Path(__file__).parent / "published" / "0.1.0.tar.gz"


def check(
    directory: Path, *words: str, data_dir: Path | None = None, port: int | None = None
) -> tuple[int, dict[str, Any]]:
    """The exit code and what it says; the data directory must be as it was."""
    where = ["--data-dir", str(data_dir or directory / "data")]
    before = contents(data_dir) if data_dir is not None else None
    done = run_moldau(
        "serve", "--check", "--json", "--port", str(port or free_ports(4)), *where, *words,
        env={**clean_environment(), "MOLDAU_RUNTIME_DIR": str(directory / "run")},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert before is None or before == contents(data_dir)
    assert data_dir is not None or not (directory / "data").exists()
    report = as_json(done.stdout)
    assert report["would_start"] == (done.returncode == 0) == (not report["problems"])
    return done.returncode, report


def contents(directory: Path | None) -> dict[str, tuple[int, int, int]]:
    assert directory is not None
    return {
        str(path): (found.st_ino, found.st_size, found.st_mtime_ns)
        for path in directory.rglob("*")
        if not path.is_socket()
        for found in [path.stat()]
    }


def test_a_store_of_an_older_format(start_moldau: Start, short_tmp_path: Path) -> None:
    data_dir = short_tmp_path / "old"
    with tarfile.open(OLD) as archive:
        archive.extractall(data_dir, filter="data")
    code, report = check(short_tmp_path, data_dir=data_dir)
    assert (code, report["format"]) == (0, 1)
    (change,) = report["changes"]
    said = re.fullmatch(
        r"the store is changed from format 1 to 2: (\d+) of (\d+) keys are renamed\. "
        "It cannot be undone: keep a copy",
        change,
    )
    assert said is not None, change
    broker = start_moldau(workers=1, data_dir=data_dir)
    assert f"has format {CURRENT} now: {said[1]} keys renamed" in broker.log()
    assert broker.stop() == 0
    assert check(short_tmp_path, data_dir=data_dir)[1]["changes"] == []


def test_a_broker_that_runs(start_moldau: Start) -> None:
    broker = start_moldau(workers=1)
    cli = Cli(broker)
    words = ("serve", "--check", "--data-dir", str(broker.data_dir))
    done = cli(*words, "--port", str(broker.port), "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert f"process {broker.pid} serves this port now: stop it first" in done.stdout
    assert done.stdout.splitlines()[-1] == "it would start"
    done = cli(*words, "--port", str(free_ports(4)))
    assert done.returncode == 3
    assert f"is in use by process {broker.pid}" in done.stdout
    assert done.stdout.splitlines()[-1] == "IT WOULD NOT START"

    assert broker.stop() == 0
    code, report = check(broker.directory, data_dir=broker.data_dir)
    assert (code, report["format"], report["changes"]) == (0, CURRENT, [])


def test_a_store_that_lacks_its_end_or_was_changed(
    start_moldau: Start, short_tmp_path: Path
) -> None:
    broker = start_moldau(workers=1)
    assert broker.stop() == 0
    (file,) = broker.data_dir.rglob("*.incr.aof")
    os.truncate(file, file.stat().st_size - 3)
    code, report = check(short_tmp_path, data_dir=broker.data_dir)
    assert (code, report["format"]) == (0, CURRENT)
    assert "begin a new leader epoch" in report["changes"][0]
    file.write_bytes(b"*3\r\n$3\r\nSET\r\nwhat is this?\r\n" + file.read_bytes())
    code, report = check(short_tmp_path, data_dir=broker.data_dir)
    assert code == 3
    assert "cannot be read: " in report["problems"][0]


def test_a_newer_store(start_moldau: Start, short_tmp_path: Path) -> None:
    broker = start_moldau(workers=1)
    with redis.from_url(broker.store_url) as client:
        client.set(keys.FORMAT, "3 0.9.0")
    assert broker.stop() == 0
    code, report = check(short_tmp_path, data_dir=broker.data_dir)
    assert (code, report["format"]) == (3, 3)
    assert "it needs Moldau 0.9.0 or newer" in report["problems"][0]


def test_nothing_yet(short_tmp_path: Path) -> None:
    code, report = check(short_tmp_path, "--secure")
    assert (code, report["format"]) == (0, 0)
    assert ["gets a new, empty store" in change for change in report["changes"]] == [False, True]
    assert "user admin" in report["changes"][0]
    assert report["settings"]["secure"] == "True"


def test_what_prevents_a_start(short_tmp_path: Path) -> None:
    port = free_ports(4)
    with socket.create_server(("127.0.0.1", port + 1)):
        code, report = check(short_tmp_path, port=port)
    assert code == 3
    assert str(port + 1) in report["problems"][0]
    done = run_moldau("serve", "--check", "--host", "0.0.0.0")
    assert done.returncode == 3
    assert "does not authenticate its clients" in done.stderr
    done = run_moldau("serve", "--json", "--port", str(port))
    assert done.returncode == 3
    assert "--json goes with --check" in done.stderr


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with running_redis(tmp_path / "redis") as started:
        yield started


def test_a_redis(start_moldau: Start, server: RedisServer, short_tmp_path: Path) -> None:
    code, report = check(short_tmp_path, "--redis", server.url)
    assert (code, report["format"]) == (0, 0)
    with redis.from_url(server.url) as client:
        assert not client.keys("*")
    broker = start_moldau(workers=1, redis=server.url)
    code, report = check(short_tmp_path, "--redis", server.url)
    assert (code, report["format"]) == (0, CURRENT)
    said = f"another broker serves this database now (process {broker.pid} on "
    assert any(said in text for text in report["changes"])
    assert broker.stop() == 0
    server.stop()
    code, report = check(short_tmp_path, "--redis", server.url)
    assert code == 3
    assert "no store at" in report["problems"][0]
