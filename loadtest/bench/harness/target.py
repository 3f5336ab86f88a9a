"""The broker a benchmark runs against: one of its own, or one that is running, ours or not.

Of a Moldau on this machine the processes are known by their roles. Of another broker they are those
that --pid names and all that descend from them; the role "broker" is the sum of all there are, so
that brokers can be compared that are made of one process and of several.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from broker.wire.apis import APIS
from broker.wire.messages.api_versions import ApiVersionsRequest
from loadtest.bench.harness.client import Client
from loadtest.bench.harness.measure import with_descendants
from ops.serve.control import NotRunningError, ask_status
from ops.serve.runtime import control_socket, runtime_dir, worker_socket

START_PATIENCE_S = 30
# API key -> the version that the benchmarks any broker can take send: those of Kafka 3.2 and later.
SENT = {0: 9, 1: 12, 2: 5, 3: 9, 10: 3, 11: 9, 12: 4, 13: 5, 14: 5, 19: 5, 20: 5}
_TOPICS = {2, 3, 19, 20}  # to make one, look at its end, and delete it
NEEDED = {
    "produce": {0, *_TOPICS},
    "fetch": {0, 1, *_TOPICS},
    "latency": {0, 1, *_TOPICS},
    "groups": {3, 10, 11, 12, 13, 14},
    "connections": {3, 10, 12},
}


class TargetError(RuntimeError):
    """There is no broker to measure; the text says what to do."""


class Target(NamedTuple):
    """Where to send the load, and whose CPU to read; no pids when it is not ours to look at."""

    host: str
    port: int
    worker_pids: list[int]
    store_pids: list[int]
    store_url: str | None
    router_pids: list[int]
    worker_sockets: list[str]  # by index
    broker_pids: list[int]  # all of its processes, of whatever role

    @property
    def is_ours(self) -> bool:
        """A Moldau of this machine: then we know which worker serves what, and its store."""
        return bool(self.worker_pids)

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
    """A broker that runs already, and its processes' ids if it is not a Moldau of this machine."""
    host, _, port = bootstrap.rpartition(":")
    if not host or not port.isdigit():
        raise TargetError(f"--bootstrap {bootstrap}: want HOST:PORT")
    try:
        broker_pids = with_descendants(pids)
    except ProcessLookupError as fault:
        raise TargetError(f"--pid {fault}: there is no such process") from None
    try:
        directory = runtime_dir(os.environ)
        status = ask_status(control_socket(directory, int(port)))
    except NotRunningError:
        return Target(host, int(port), [], [], None, [], [], broker_pids)
    target = _from_status(status, host, int(port), directory)
    return target._replace(broker_pids=broker_pids) if pids else target


def await_ready(target: Target, bench: str) -> None:
    """Until a broker that has just started serves. Raises TargetError, also for one that cannot."""
    if target.is_ours:
        return
    with Client(target.host, target.port) as client:
        _check_versions(client, NEEDED.get(bench, SENT.keys()))
        deadline = time.monotonic() + START_PATIENCE_S
        while not client.metadata().brokers:  # Kafka answers before its controller trusts it
            if time.monotonic() > deadline:
                raise TargetError("this broker names no brokers in its metadata")
            time.sleep(0.1)


def _check_versions(client: Client, needed: Collection[int]) -> None:
    """That a broker speaks what a benchmark sends."""
    answer = client.call(ApiVersionsRequest(), 0)
    spoken = {told.api_key: (told.min_version, told.max_version) for told in answer.api_keys}
    missing = []
    for key in sorted(needed):
        lowest, highest = spoken.get(key, (0, -1))
        if not lowest <= SENT[key] <= highest:
            missing.append(f"{APIS[key].name} {SENT[key]}")
    if missing:
        raise TargetError(f"this broker does not speak {', '.join(missing)}")


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
def own(workers: int, options: list[str]) -> Iterator[Target]:
    """A broker of our own with an embedded store in a temporary directory, gone afterwards."""
    directory = tempfile.mkdtemp(prefix="moldau-bench-")
    port = _free_port(1 + workers)
    environment = {**os.environ, "MOLDAU_RUNTIME_DIR": os.path.join(directory, "run")}
    words = ["serve", "--port", str(port), "--workers", str(workers), *options]
    words += ["--data-dir", os.path.join(directory, "data")]
    with open(os.path.join(directory, "log"), "w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ops.cli", *words],
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
            yield _from_status(status, "127.0.0.1", port, runtime)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(START_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
            shutil.rmtree(directory, ignore_errors=True)
