"""Two hosts with one external store, on two loopback addresses of this machine.

first, second = Host(start_moldau, 1, store.url), Host(start_moldau, 2, store.url)
first.until_serving()
with Watch(first, second) as watch:
    first.kill_everything()
    second.until_serving()
watch.prove_one_at_a_time()
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import psutil  # type: ignore[import-untyped]

from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.ops.serve.control import NotRunningError
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.client import RawClient

PATIENCE_S = 120.0
ASK_EVERY_S = 0.05

Start = Callable[..., Broker]


class Host:
    """A `moldau serve --standby`, as if on a machine of its own."""

    def __init__(self, start: Start, number: int, url: str, **options: Any) -> None:
        self.address = f"127.0.0.{number}"
        self.broker = start(redis=url, host=self.address, standby="true", **options)
        self.bootstrap = f"{self.address}:{self.broker.port}"

    @property
    def state(self) -> str:
        """As the supervisor says: standby, starting, running …; gone if it does not answer."""
        try:
            return str(self.broker.status()["processes"][0]["state"])
        except NotRunningError:
            return "gone"

    @property
    def lease(self) -> dict[str, Any]:
        found: dict[str, Any] = self.broker.status()["lease"]
        return found

    def until(self, state: str) -> None:
        def is_so() -> bool:
            return self.state == state

        wait_until(is_so, PATIENCE_S, f"{self.address} is {state}\n{self.broker.log()}")

    def until_serving(self) -> None:
        self.until("running")

    def processes(self) -> list[psutil.Process]:
        """All of them, the supervisor first."""
        supervisor = psutil.Process(self.broker.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def signal_everything(self, number: signal.Signals) -> None:
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def kill_everything(self) -> None:
        """What the end of its machine is to everybody else."""
        self.broker.remember_members()
        self.signal_everything(signal.SIGKILL)
        self.broker.process.wait(30)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP for every process, SIGCONT at the end."""
        processes = self.processes()
        for process in processes:
            os.kill(process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)


class Answer(NamedTuple):
    port: int
    sent: float
    received: float


class Watch:
    """Asks every worker and router of both hosts all the time, and notes when each answered."""

    def __init__(self, *hosts: Host) -> None:
        self._stop = threading.Event()
        self._answers: list[list[Answer]] = [[] for _ in hosts]
        self._threads = [
            threading.Thread(target=self._ask, args=(host.address, port, answers), daemon=True)
            for host, answers in zip(hosts, self._answers, strict=True)
            for port in (host.broker.port, host.broker.port + 1)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, address: str, port: int, answers: list[Answer]) -> None:
        client: RawClient | None = None
        while not self._stop.wait(ASK_EVERY_S):
            sent = time.monotonic()
            try:
                client = client or RawClient(port, address, timeout=60)
                # What was asked before the other host served, and is answered late, is no matter.
                sent = time.monotonic()
                client.call(MetadataRequest(topics=[]), 9)
            except OSError:
                if client is not None:
                    client.close()
                client = None
            else:
                answers.append(Answer(port, sent, time.monotonic()))
        if client is not None:
            client.close()

    def answered(self, host: int) -> int:
        """How often the host has answered until now."""
        return len(self._answers[host])

    def prove_one_at_a_time(self, former: int = 0, later: int = 1) -> float:
        """No question was answered by the former host that was asked after the later one had begun
        to answer. Returns the pause between the two."""
        begun = min(each.received for each in self._answers[later])
        late = [each for each in self._answers[former] if each.received > begun]
        assert not late, f"{len(late)} answers by both: {late[:3]}"
        return begun - max(each.received for each in self._answers[former])
