"""`moldau serve` and `moldau status` as an operator meets them: real processes throughout."""

import json
import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
import redis
from confluent_kafka.admin import AdminClient

from tests.support.redis_server import RedisServer, running_redis
from tests.support.running import (
    MOLDAU_WITH_FAKE_WORKERS,
    Broker,
    NotStartedError,
    free_ports,
    run_moldau,
    wait_until,
)

Start = Callable[..., Broker]


@pytest.fixture
def redis_server(short_tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(short_tmp_path / "redis") as server:
        yield server


def refused(start: Start, **options: object) -> str:
    """What `serve` says when it cannot start; it must do so with exit code 3."""
    with pytest.raises(NotStartedError) as raised:
        start(**options)
    assert raised.value.exit_code == 3, raised.value.log
    return raised.value.log


# --- being ready, and saying so --------------------------------------------------------------


def test_ready_line_says_what_clients_are_told(start_moldau: Start) -> None:
    broker = start_moldau(workers=2)
    port = broker.port
    assert broker.ready_line == (
        f"moldau ready bootstrap=127.0.0.1:{port} "
        f"brokers=127.0.0.1:{port + 1},127.0.0.1:{port + 2} "
        f"store=unix://{broker.data_dir}/store.sock"
    )
    for each in (port, port + 1, port + 2):
        socket.create_connection(("127.0.0.1", each), timeout=5).close()


def told_brokers(broker: Broker) -> dict[int, tuple[str, int]]:
    """The brokers a client is told of, by node id."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    metadata = client.list_topics("no-matter-which", timeout=20)
    return {node.id: (str(node.host), node.port) for node in metadata.brokers.values()}


def test_clients_are_told_of_every_worker(moldau: Broker) -> None:
    assert told_brokers(moldau) == {
        0: ("127.0.0.1", moldau.port + 1),
        1: ("127.0.0.1", moldau.port + 2),
    }


def test_clients_are_told_of_one_port_on_request(start_moldau: Start) -> None:
    broker = start_moldau(workers=2, advertise="router", advertised_host="localhost")
    assert f"bootstrap=localhost:{broker.port} brokers=localhost:{broker.port} " in (
        broker.ready_line
    )
    assert told_brokers(broker) == {0: ("localhost", broker.port)}


def test_status_tells_every_process_and_the_store(moldau: Broker) -> None:
    env = {"MOLDAU_RUNTIME_DIR": str(moldau.directory / "run")}
    result = run_moldau("status", "--json", "--port", str(moldau.port), env=env)
    assert result.returncode == 0, result.stderr
    status = json.loads(result.stdout)
    roles = [(process["role"], process["index"]) for process in status["processes"]]
    assert roles == [
        ("supervisor", 0),
        ("store", 0),
        ("worker", 0),
        ("worker", 1),
        ("router", 0),
    ]
    for process in status["processes"]:
        assert set(process) == {
            "role",
            "index",
            "pid",
            "port",
            "uptime_s",
            "restarts",
            "state",
            "slots",
        }
        assert psutil.pid_exists(process["pid"])
        assert process["state"] == "running"
        assert process["uptime_s"] > 0
    assert status["processes"][0]["pid"] == moldau.pid
    assert [process["port"] for process in status["processes"]] == [
        moldau.port,
        None,
        moldau.port + 1,
        moldau.port + 2,
        moldau.port,
    ]
    slots = [process["slots"] for process in status["processes"]]
    assert slots == [None, None, list(range(0, 50, 2)), list(range(1, 50, 2)), None]
    with redis.from_url(status["store"]["url"]) as client:
        assert client.ping()


def test_status_for_people_is_a_table(moldau: Broker) -> None:
    env = {"MOLDAU_RUNTIME_DIR": str(moldau.directory / "run"), "COLUMNS": "120"}
    result = run_moldau("status", "--port", str(moldau.port), env=env)
    assert result.returncode == 0, result.stderr
    for words in (
        "supervisor",
        "worker 1",
        "router 0",
        str(moldau.pid),
        "running",
        "1, 3, 5 … 49 (25)",
        "store.sock",
    ):
        assert words in result.stdout


def test_status_of_nothing_says_so(short_tmp_path: Path) -> None:
    env = {"MOLDAU_RUNTIME_DIR": str(short_tmp_path)}
    result = run_moldau("status", "--port", "10999", env=env)
    assert result.returncode == 1
    assert "is running on port 10999" in result.stderr
    assert "moldau serve --port 10999" in result.stderr


# --- stopping --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_stops_everything_and_exits_0(
    start_moldau: Start, number: signal.Signals
) -> None:
    broker = start_moldau(workers=2)
    begun = time.monotonic()
    broker.kill("supervisor", number=number)
    assert broker.process.wait(10) == 0, broker.log()
    assert time.monotonic() - begun < 10  # what is promised to operators
    assert broker.stop() == 0  # and nothing is left
    assert [path.name for path in (broker.directory / "run").iterdir()] == [f"{broker.port}.lock"]


def test_workers_deaf_to_sigterm_do_not_keep_it_from_stopping(start_moldau: Start) -> None:
    broker = start_moldau(command=MOLDAU_WITH_FAKE_WORKERS, env={"FAKE_WORKER": "deaf"})
    broker.kill("supervisor", number=signal.SIGTERM)
    assert broker.process.wait(10) == 0, broker.log()
    assert "did not stop in time: killed" in broker.log()
    assert broker.stop() == 0


# --- surviving -------------------------------------------------------------------------------


def test_a_killed_worker_is_back_and_the_other_one_did_not_notice(start_moldau: Start) -> None:
    broker = start_moldau(workers=2)
    other = broker.pids("worker")[1]
    old = broker.kill("worker", 0)
    broker.wait_restarted("worker", 0, old)
    socket.create_connection(("127.0.0.1", broker.port + 1), timeout=5).close()
    workers = broker.processes("worker")
    assert workers[0]["restarts"] == 1
    assert (workers[1]["pid"], workers[1]["restarts"]) == (other, 0)


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced(start_moldau: Start) -> None:
    broker = start_moldau(workers=2)
    old = broker.kill("worker", 1, signal.SIGSTOP)
    broker.wait_restarted("worker", 1, old, patience_s=60)
    assert "worker 1 hangs: killed" in broker.log()


def test_a_killed_store_is_back_with_its_data(start_moldau: Start) -> None:
    broker = start_moldau(workers=1)
    with redis.from_url(broker.store_url) as client:
        client.set("key", "value")
    old = broker.kill("store")
    broker.wait_restarted("store", 0, old)
    with redis.from_url(broker.store_url) as client:
        assert client.get("key") == b"value"


def test_data_survives_kill_9_of_every_process(start_moldau: Start) -> None:
    broker = start_moldau(workers=2)
    with redis.from_url(broker.store_url) as client:
        client.set("key", "value")
    pids = [process["pid"] for process in broker.status()["processes"]]
    broker.remember_members()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    broker.process.wait(10)
    # At once, and on the same ports: what the dead left behind is no obstacle.
    again = start_moldau(workers=2, port=broker.port, data_dir=broker.data_dir)
    with redis.from_url(again.store_url) as client:
        assert client.get("key") == b"value"
    assert again.stop() == 0


def test_what_was_acknowledged_survives_kill_9_of_a_busy_store(start_moldau: Start) -> None:
    """While the disk is busy too: when a server may hold back what it has acknowledged."""
    broker = start_moldau(command=MOLDAU_WITH_FAKE_WORKERS, workers=1)
    blob = os.urandom(16384)
    for _ in range(2):
        url, pid = broker.store_url, broker.pids("store")[0]
        acknowledged = 0
        with redis.from_url(url) as client:
            client.delete("log")
            deadline = time.monotonic() + 2.0
            while time.monotonic() < deadline:
                with client.pipeline(transaction=False) as pipeline:
                    for _ in range(16):
                        pipeline.xadd("log", {"b": blob}, id=f"{acknowledged + 1}-1")
                        acknowledged += 1
                    pipeline.execute()
                facts = client.info("persistence")
                if facts["aof_buffer_length"] > 0 or facts["aof_pending_bio_fsync"]:
                    break  # the very moment to be killed
            os.kill(pid, signal.SIGKILL)
        broker.wait_restarted("store", 0, pid)
        with redis.from_url(url) as client:
            assert client.xlen("log") == acknowledged


def test_no_process_outlives_a_killed_supervisor(start_moldau: Start) -> None:
    broker = start_moldau(workers=2)
    broker.kill("supervisor")
    broker.process.wait(10)
    wait_until(lambda: not broker.leftovers(), 10, f"orphans are gone: {broker.leftovers()}")


def test_not_even_hanging_processes_outlive_a_killed_supervisor(start_moldau: Start) -> None:
    broker = start_moldau(workers=2)
    broker.kill("worker", 0, signal.SIGSTOP)
    broker.kill("store", 0, signal.SIGSTOP)
    broker.kill("supervisor")
    broker.process.wait(10)
    wait_until(lambda: not broker.leftovers(), 10, f"orphans are gone: {broker.leftovers()}")


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
    assert "moldau: store ended with exit code 1: " in message
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
    wait_until(lambda: "configuration read again" in broker.log(), 20, "it was read again")
    assert not set(before) & set(broker.pids("worker"))
    assert broker.log().count("log level is debug") == 2
    assert "store-maxmemory changed: needs a new start of serve" in broker.log()

    config.write_text('log-levle = "info"\n')
    broker.kill("supervisor", number=signal.SIGHUP)
    wait_until(lambda: "did you mean 'log-level'" in broker.log(), 20, "the slip is named")
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
    told = [broker.ready_line, json.dumps(broker.status()), broker.log()]
    command_lines = [" ".join(psutil.Process(pid).cmdline()) for pid in broker.pids("worker")]
    assert not [text for text in told + command_lines if "hunter2" in text]
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
    assert "read-only replica of 127.0.0.1:1" in refused(start_moldau, redis=redis_server.url)


def test_a_store_nobody_listens_at_is_named(start_moldau: Start) -> None:
    port = free_ports(1)
    message = refused(start_moldau, redis=f"redis://127.0.0.1:{port}")
    assert f"no store at redis://127.0.0.1:{port}: " in message
    assert "refused" in message


# --- the command -----------------------------------------------------------------------------


def test_help_teaches_and_version_is_told() -> None:
    overview = run_moldau("--help")
    assert overview.returncode == 0
    assert "moldau serve" in overview.stdout
    options = run_moldau("serve", "--help")
    assert options.returncode == 0
    for words in ("--advertised-host", "examples:", "MOLDAU_PORT=19092", "SIGHUP"):
        assert words in options.stdout
    assert run_moldau("--version").stdout.startswith("moldau ")
    assert run_moldau("serve", "--prot", "1").returncode == 2
    assert run_moldau().returncode == 2
