"""`moldau serve` and `moldau status` as an operator meets them: real processes throughout."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
import redis
from confluent_kafka.admin import AdminClient

from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.broker.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.brokers.running import (
    MOLDAU_WITH_FAKE_WORKERS,
    Broker,
    run_moldau,
    wait_until,
)
from tests.support.raw.client import RawClient

Start = Callable[..., Broker]

pytestmark = pytest.mark.usefixtures("fresh_processes")
LOGGERS = 8  # the kind of resource


# --- being ready, and saying so --------------------------------------------------------------


def test_ready_line_names_the_advertised_addresses(start_moldau: Start) -> None:
    broker = start_moldau(workers=2)
    port = broker.port
    assert broker.ready_line == (
        f"moldau ready bootstrap=127.0.0.1:{port} "
        f"brokers=127.0.0.1:{port + 1},127.0.0.1:{port + 2} "
        f"store=unix://{broker.data_dir}/store.sock"
    )
    for each in (port, port + 1, port + 2):
        socket.create_connection(("127.0.0.1", each), timeout=5).close()


def advertised_brokers(broker: Broker) -> dict[int, tuple[str, int]]:
    """The brokers in the answer to Metadata, by node id."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    metadata = client.list_topics("no-matter-which", timeout=20)
    return {node.id: (str(node.host), node.port) for node in metadata.brokers.values()}


def test_every_worker_is_advertised(moldau: Broker) -> None:
    assert advertised_brokers(moldau) == {
        0: ("127.0.0.1", moldau.port + 1),
        1: ("127.0.0.1", moldau.port + 2),
    }


def test_one_port_is_advertised_on_request(start_moldau: Start) -> None:
    broker = start_moldau(workers=2, advertise="router", advertised_host="localhost")
    assert f"bootstrap=localhost:{broker.port} brokers=localhost:{broker.port} " in (
        broker.ready_line
    )
    assert advertised_brokers(broker) == {0: ("localhost", broker.port)}
    # Every worker is broker 0: the level of a logger is set in all of them.
    level = AlterableConfig("moldau.log", 0, "ERROR")
    setting = IncrementalAlterConfigsRequest([AlterConfigsResource(LOGGERS, "0", [level])])
    with RawClient(broker.port) as client:
        assert client.call(setting).responses[0].error_code == 0
    asking = DescribeConfigsRequest([DescribeConfigsResource(LOGGERS, "0", ["moldau.log"])])
    for worker in broker.processes("worker"):
        with RawClient(worker["port"]) as client:
            (found,) = client.call(asking).results[0].configs
        assert found.value == "ERROR"


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
    broker.kill("supervisor", number=number)
    assert broker.process.wait(30) == 0, broker.log()
    assert broker.stop() == 0  # and nothing is left
    assert [path.name for path in (broker.directory / "run").iterdir()] == [f"{broker.port}.lock"]


def test_workers_deaf_to_sigterm_do_not_keep_it_from_stopping(start_moldau: Start) -> None:
    broker = start_moldau(command=MOLDAU_WITH_FAKE_WORKERS, env={"FAKE_WORKER": "deaf"})
    broker.kill("supervisor", number=signal.SIGTERM)
    assert broker.process.wait(30) == 0, broker.log()
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
    broker.wait_restarted("worker", 1, old)
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
    broker.process.wait(30)
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
    broker.process.wait(30)
    wait_until(lambda: not broker.leftovers(), 30, f"orphans are gone: {broker.leftovers()}")


def test_not_even_hanging_processes_outlive_a_killed_supervisor(start_moldau: Start) -> None:
    broker = start_moldau(workers=2)
    broker.kill("worker", 0, signal.SIGSTOP)
    broker.kill("store", 0, signal.SIGSTOP)
    broker.kill("supervisor")
    broker.process.wait(30)
    wait_until(lambda: not broker.leftovers(), 30, f"orphans are gone: {broker.leftovers()}")


# --- the command -----------------------------------------------------------------------------


def test_help_and_version() -> None:
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
