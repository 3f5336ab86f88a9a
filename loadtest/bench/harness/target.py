"""The broker a benchmark runs against: one of its own, or a running one, Moldau or another.

Of a Moldau on this machine the processes are known by role. Of another broker they are those that
--pid names, with their descendants. The role "broker" is the sum of all processes, so that brokers
of one process and of several can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.schema import Message
from moldau.loadtest.bench.harness.client import Client
from moldau.loadtest.bench.harness.measure import with_descendants
from moldau.loadtest.bench.harness.requests import VERSIONS, RequestTypes
from moldau.loadtest.bench.harness.secured import using
from moldau.ops.client import API_OF, PLAINTEXT, ClientError, Security, read_client_settings
from moldau.ops.command_line import client_settings
from moldau.ops.serve.control import NotRunningError, ask_status
from moldau.ops.serve.runtime import control_socket, runtime_dir, worker_socket

START_TIMEOUT_S = STOP_TIMEOUT_S = 30


class TargetError(RuntimeError):
    """There is no broker to measure; the message says what to do."""


class Target(NamedTuple):
    """Where to send the load, and which processes to measure; no pids if they are unknown."""

    host: str
    port: int
    worker_pids: list[int]
    store_pids: list[int]
    store_url: str | None
    router_pids: list[int]
    worker_sockets: list[str]  # by index
    broker_pids: list[int]  # all its processes

    @property
    def is_local_moldau(self) -> bool:
        """Then its workers' roles and its store are known."""
        return bool(self.worker_pids)

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def pids(self) -> dict[str, list[int]]:
        return {
            "broker": self.broker_pids,
            "router": self.router_pids,
            "worker": self.worker_pids,
            "store": self.store_pids,
            "client": [os.getpid()],
        }


def running(bootstrap: str, pids: Sequence[int] = ()) -> Target:
    """A running broker; `pids` are its processes, if it is not a Moldau on this machine."""
    host, _, port = bootstrap.rpartition(":")
    if not host or not port.isdigit():
        raise TargetError(f"--bootstrap {bootstrap}: want HOST:PORT")
    try:
        broker_pids = with_descendants(pids)
    except ProcessLookupError as error:
        raise TargetError(f"--pid {error}: there is no such process") from None
    try:
        directory = runtime_dir(os.environ)
        status = ask_status(control_socket(directory, int(port)))
    except NotRunningError:
        return Target(host, int(port), [], [], None, [], [], broker_pids)
    target = _from_status(status, host, int(port), directory)
    return target._replace(broker_pids=broker_pids) if pids else target


def await_ready(target: Target, needed: RequestTypes) -> None:
    """Wait for a broker that has just started. Raises TargetError, also if it lacks an API."""
    if target.is_local_moldau:
        return
    with Client(target.address) as client:
        _check_versions(client, needed)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not client.metadata().brokers:  # Kafka answers before it has registered
            if time.monotonic() > deadline:
                raise TargetError("the metadata of this broker lists no brokers")
            time.sleep(0.1)


def _check_versions(client: Client, needed: RequestTypes) -> None:
    """The broker has to serve the versions that a benchmark sends."""
    missing = unserved(client, {request: VERSIONS[request] for request in needed})
    if missing:
        raise TargetError(f"this broker does not serve {', '.join(missing)}")


def unserved(client: Client, wanted: Mapping[type[Message], int]) -> list[str]:
    """Which of these versions of requests the broker does not serve."""
    answer = client.call(ApiVersionsRequest(), 0)
    served = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    missing = []
    for request, version in wanted.items():
        api = API_OF[request]
        lowest, highest = served.get(api.key, (0, -1))
        if not lowest <= version <= highest:
            missing.append(f"{api.name} {version}")
    return missing


def _from_status(status: dict[str, object], host: str, port: int, directory: Path) -> Target:
    processes = json.loads(json.dumps(status["processes"]))
    by_role: dict[str, list[int]] = {}
    for process in processes:
        by_role.setdefault(process["role"], []).append(process["pid"])
    store = json.loads(json.dumps(status["store"]))
    workers = by_role.get("worker", [])
    return Target(
        host,
        port,
        workers,
        by_role.get("store", []),
        store["url"],
        by_role.get("router", []),
        [str(worker_socket(directory, port, index)) for index in range(len(workers))],
        [process["pid"] for process in processes],
    )


def _free_port(count: int) -> int:
    """The first of `count` consecutive free ports."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise TargetError("found no free ports")


@contextmanager
def own_broker(
    workers: int, options: list[str], protocols: Sequence[str] = (), **env: str
) -> Iterator[Target]:
    """A broker with an embedded store in a temporary directory, removed afterwards.

    Of several protocols each has a listener: its router's port and its workers', one listener
    after the other.
    """
    raise_open_files_limit()
    directory = tempfile.mkdtemp(prefix="moldau-bench-")
    port = _free_port((1 + workers) * max(len(protocols), 1))
    environment = {**os.environ, **env, "MOLDAU_RUNTIME_DIR": os.path.join(directory, "run")}
    listeners = [
        f"{protocol}://127.0.0.1:{port + number * (1 + workers)}"
        for number, protocol in enumerate(protocols)
    ]
    where = ["--listeners", ",".join(listeners)] if listeners else ["--port", str(port)]
    words = ["serve", *where, "--workers", str(workers), "--http", "off", *options]
    words += ["--data-dir", os.path.join(directory, "data")]
    with open(os.path.join(directory, "log"), "w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moldau.ops.cli", *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("moldau ready"):
                log.seek(0)
                raise TargetError(f"the broker did not start: {log.read()[-2000:]}")
            runtime = runtime_dir(environment)
            status = ask_status(control_socket(runtime, port))
            with using(_own_security(directory, options)):
                yield _from_status(status, "127.0.0.1", port, runtime)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
            shutil.rmtree(directory, ignore_errors=True)


def _own_security(directory: str, options: list[str]) -> Security:
    """The settings that `serve --secure` has written for its clients."""
    if "--secure" not in options:
        return PLAINTEXT
    path = os.path.join(directory, "data", "security", "client.properties")
    return read_client_settings(path).security


def broker_options(arguments: argparse.Namespace) -> list[str]:
    """Options of a broker that a benchmark starts."""
    options = ["--store-fsync", arguments.store_fsync]
    options += ["--tail-cache-bytes", str(arguments.tail_cache_bytes)]
    return [*options, "--secure"] if arguments.secure else options


def _given_security(arguments: argparse.Namespace) -> Security:
    try:
        return client_settings(arguments).security
    except ClientError as error:
        raise TargetError(str(error)) from None


@contextmanager
def broker_under_test(arguments: argparse.Namespace, needed: RequestTypes = ()) -> Iterator[Target]:
    """The broker at --bootstrap, which has to serve the `needed` requests, or one of its own."""
    if arguments.bootstrap:
        raise_open_files_limit()
        with using(_given_security(arguments)):
            target = running(arguments.bootstrap, arguments.pid or ())
            await_ready(target, needed)
            yield target
        return
    with own_broker(arguments.workers, broker_options(arguments)) as target:
        yield target


def raise_open_files_limit() -> None:
    """Raise it to the hard limit: benchmarks and their brokers have thousands of connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
