"""`moldau serve`: what it refuses to start with, its settings, and its stores."""

import json
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
import redis

from moldau.testing import BrokerFailed
from tests.support.brokers.running import (
    MOLDAU_WITH_FAKE_WORKERS,
    Broker,
    free_ports,
    wait_until,
)
from tests.support.stores.redis_server import RedisServer, running_redis

Start = Callable[..., Broker]

pytestmark = pytest.mark.usefixtures("fresh_processes")


@pytest.fixture
def redis_server(short_tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(short_tmp_path / "redis") as server:
        yield server


def refused(start: Start, **options: object) -> str:
    """What `serve` says when it cannot start; it must do so with exit code 3."""
    with pytest.raises(BrokerFailed) as raised:
        start(**options)
    assert raised.value.exit_code == 3, raised.value.log
    return raised.value.log


# --- refusing to start -----------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 2])
def test_a_taken_port_is_named(start_moldau: Start, offset: int) -> None:
    port = free_ports(3)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", port + offset))
        other.listen()
        message = refused(start_moldau, port=port, workers=2)
    assert f"port {port + offset} " in message
    assert "is taken" in message
    assert message.count("\n") == 1  # one clear message


def test_the_same_port_twice_names_who_has_it(start_moldau: Start, short_tmp_path: Path) -> None:
    broker = start_moldau(workers=1)
    env = {"MOLDAU_RUNTIME_DIR": str(broker.directory / "run")}
    message = refused(start_moldau, port=broker.port, workers=1, env=env)
    assert f"port {broker.port} is taken by another moldau serve, process {broker.pid}" in message


def test_the_same_data_directory_twice_names_who_has_it(start_moldau: Start) -> None:
    broker = start_moldau(workers=1)
    message = refused(start_moldau, workers=1, data_dir=broker.data_dir)
    assert f"{broker.data_dir} is in use by process {broker.pid}" in message
    assert "--data-dir" in message


def test_a_worker_that_cannot_start_ends_it_with_its_reason(start_moldau: Start) -> None:
    message = refused(
        start_moldau, command=MOLDAU_WITH_FAKE_WORKERS, env={"FAKE_WORKER": "exit-3"}, workers=1
    )
    assert "worker 0: refuses to start\n" in message
    assert message.endswith("moldau: worker 0 could not start; its reason is above\n")


def test_a_store_that_cannot_start_ends_it_with_its_reason(
    start_moldau: Start, short_tmp_path: Path
) -> None:
    data_dir = short_tmp_path / "data"
    files = data_dir / "store" / "appendonlydir"
    files.mkdir(parents=True)
    (files / "appendonly.aof.manifest").write_text("this is no manifest\n")
    message = refused(start_moldau, workers=1, data_dir=data_dir)
    assert "moldau: store exited with code 1: " in message
    assert f"(in {data_dir}/store.log)" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 9092\n", "unknown key 'prot'; did you mean 'port'?"),
        ('[broker]\n"num.partitons" = 3\n', "num.partitons"),
        ('[broker]\n"num.partitions" = "many"\n', "num.partitions"),
    ],
)
def test_a_slip_in_the_configuration_is_named(
    start_moldau: Start, short_tmp_path: Path, text: str, message: str
) -> None:
    config = short_tmp_path / "moldau.toml"
    config.write_text(text)
    said = refused(start_moldau, config=config)
    assert message in said
    assert said.count("\n") == 1


# --- settings --------------------------------------------------------------------------------


def test_flag_beats_environment_beats_file(start_moldau: Start, short_tmp_path: Path) -> None:
    config = short_tmp_path / "moldau.toml"
    config.write_text('workers = 1\nadvertised-host = "from.file"\nadvertise = "router"\n')
    env = {"MOLDAU_WORKERS": "3", "MOLDAU_ADVERTISED_HOST": "from.env"}
    broker = start_moldau(config=config, env=env, workers=2, command=MOLDAU_WITH_FAKE_WORKERS)
    assert len(broker.pids("worker")) == 2
    assert f"brokers=from.env:{broker.port} " in broker.ready_line


def test_sighup_restarts_workers_with_the_new_settings(
    start_moldau: Start, short_tmp_path: Path
) -> None:
    config = short_tmp_path / "moldau.toml"
    config.write_text('log-level = "info"\n')
    broker = start_moldau(config=config, command=MOLDAU_WITH_FAKE_WORKERS, workers=2)
    before = broker.pids("worker")
    config.write_text('log-level = "debug"\nstore-maxmemory = "1gb"\n')
    broker.kill("supervisor", number=signal.SIGHUP)
    wait_until(lambda: "configuration reloaded" in broker.log(), 30, "it was read again")
    assert not set(before) & set(broker.pids("worker"))
    assert broker.log().count("log level is debug") == 2
    assert "store-maxmemory changed: restart serve to apply it" in broker.log()

    config.write_text('log-levle = "info"\n')
    broker.kill("supervisor", number=signal.SIGHUP)
    wait_until(lambda: "did you mean 'log-level'" in broker.log(), 30, "the slip is named")
    assert len(broker.pids("worker")) == 2


# --- the embedded store ----------------------------------------------------------------------


def test_the_embedded_store_is_private_durable_and_never_evicts(start_moldau: Start) -> None:
    broker = start_moldau(workers=1, store_maxmemory="64mb")
    for path in (broker.data_dir, broker.data_dir / "store", broker.data_dir / "store.sock"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    with redis.from_url(broker.store_url) as client:
        settings = client.config_get("*")
    assert settings["port"] == "0"
    assert settings["appendonly"] == "yes"
    assert settings["save"] == ""
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["maxmemory"] == str(64 << 20)


@pytest.mark.parametrize(("fsync", "server"), [("always", "always"), ("no", "no")])
def test_store_fsync_reaches_the_server(start_moldau: Start, fsync: str, server: str) -> None:
    broker = start_moldau(command=MOLDAU_WITH_FAKE_WORKERS, workers=1, store_fsync=fsync)
    with redis.from_url(broker.store_url) as client:
        assert client.config_get("appendfsync") == {"appendfsync": server}


def test_a_long_data_directory_puts_the_socket_elsewhere(
    start_moldau: Start, short_tmp_path: Path
) -> None:
    data_dir = short_tmp_path / ("long" * 30)
    broker = start_moldau(command=MOLDAU_WITH_FAKE_WORKERS, workers=1, data_dir=data_dir)
    assert broker.store_url == f"unix://{broker.directory}/run/{broker.port}-store.sock"
    with redis.from_url(broker.store_url) as client:
        assert client.ping()


# --- an external store -----------------------------------------------------------------------


def test_an_external_store_is_used_and_no_other_started(
    start_moldau: Start, redis_server: RedisServer
) -> None:
    broker = start_moldau(workers=1, redis=redis_server.url)
    status = broker.status()
    assert [process["role"] for process in status["processes"]] == [
        "supervisor",
        "worker",
        "router",
    ]
    assert status["store"]["url"] == redis_server.url
    assert status["store"]["kind"] == "external"
    assert "keeps no append-only file" in broker.log()
    assert not broker.data_dir.exists()


def test_passwords_are_never_shown(start_moldau: Start, redis_server: RedisServer) -> None:
    with redis.from_url(redis_server.url) as client:
        client.config_set("requirepass", "hunter2")
    host = redis_server.url.removeprefix("redis://")
    broker = start_moldau(workers=1, redis=f"redis://:hunter2@{host}")
    shown = [broker.ready_line, json.dumps(broker.status()), broker.log()]
    command_lines = [" ".join(psutil.Process(pid).cmdline()) for pid in broker.pids("worker")]
    assert not [text for text in shown + command_lines if "hunter2" in text]
    assert f"redis://:***@{host}" in broker.ready_line

    message = refused(start_moldau, redis=f"redis://:hunter3@{host}")
    assert f"no store at redis://:***@{host}: " in message
    assert "hunter3" not in message


def test_an_evicting_store_is_refused(start_moldau: Start, redis_server: RedisServer) -> None:
    with redis.from_url(redis_server.url) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
    message = refused(start_moldau, redis=redis_server.url)
    assert "evicts keys when it is full (maxmemory-policy allkeys-lru)" in message
    assert message.count("\n") == 1


def test_a_replica_is_refused(start_moldau: Start, redis_server: RedisServer) -> None:
    with redis.from_url(redis_server.url) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
    assert "is a replica of 127.0.0.1:1" in refused(start_moldau, redis=redis_server.url)


def test_a_store_that_does_not_listen_is_named(start_moldau: Start) -> None:
    port = free_ports(1)
    message = refused(start_moldau, redis=f"redis://127.0.0.1:{port}")
    assert f"no store at redis://127.0.0.1:{port}: " in message
    assert "refused" in message
