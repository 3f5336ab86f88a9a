"""The state that all client connections of one router share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from moldau.broker.access.connection_limiter import ConnectionLimiter
from moldau.broker.metrics.document import Document
from moldau.broker.net.frame_checks import FrameChecks
from moldau.broker.net.frame_memory import FrameMemory
from moldau.broker.private.table import METRICS
from moldau.broker.security.quota_rates import Windows
from moldau.broker.settings.processes import ConnectionLimits, Endpoint
from moldau.broker.wire.frame import read_request_header
from moldau.router.local_answers import LocalAnswers
from moldau.router.routing import RoutingTable
from moldau.router.workers import Workers

if TYPE_CHECKING:
    from moldau.router.worker_connections import WorkerConnection

# How long requests wait for the successor of a worker that has ended.
BACK_WITHIN_S = 3.0
NO_LIMITS = ConnectionLimits()


class RouterState:
    def __init__(
        self,
        workers: Workers,
        brokers: Callable[[str], Sequence[Endpoint]],
        max_request_bytes: int,
        *,
        has_authorizer: bool = False,
        has_telemetry: bool = False,
        limits: ConnectionLimits = NO_LIMITS,
        quota_windows: tuple[int, int] = (11, 1),
        inflight_bytes: int = 256 << 20,
    ) -> None:
        self.workers = workers
        # Limits the memory for requests of which not enough has arrived to forward them.
        self.frames = FrameMemory(inflight_bytes // 2)
        self._frame_checks = FrameChecks(self.frames)
        self.max_request_bytes = max_request_bytes
        self._brokers = brokers  # by the listener whose clients hear of them
        self._local_answers: dict[str, LocalAnswers] = {}
        self.has_telemetry = has_telemetry
        self.routing_table = RoutingTable(
            len(workers), has_authorizer=has_authorizer, has_telemetry=has_telemetry
        )
        self.connecting: set[asyncio.Task[None]] = set()
        self.connections: set[WorkerConnection] = set()  # open, or connecting
        num, seconds = quota_windows
        self.limiter = ConnectionLimiter(limits, Windows(num, seconds * 1000))
        self.loop = asyncio.get_running_loop()
        self._logins = 0
        self.report: Callable[[], Document] | None = None
        workers.on_lost = self._worker_lost

    def local_answers(self, listener: str) -> LocalAnswers:
        """Return the router's own replies to clients of a listener."""
        found = self._local_answers.get(listener)
        if found is None:
            found = LocalAnswers(
                self._brokers(listener), self.workers.is_up, has_telemetry=self.has_telemetry
            )
            self._local_answers[listener] = found
        return found

    def private_reply(self, frame: bytes) -> bytes | None:
        """Return the router's metrics, or None if the request is for something else."""
        header = read_request_header(frame)
        if header.api_key != METRICS.key or self.report is None:
            return None
        return METRICS.answer(self.report(), header.correlation_id)

    def next_for_login(self) -> int | None:
        """Return the worker for the next login, in turn; None if none is up."""
        self._logins += 1
        return self.workers.choose(self._logins % len(self.workers))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self.connecting.add(task)
        task.add_done_callback(self.connecting.discard)

    def connect(self, connection: WorkerConnection) -> None:
        self.connections.add(connection)
        path = self.workers.paths[connection.worker]
        self.spawn(connection.open(path))

    def _worker_lost(self, worker: int) -> None:
        """Connections that the worker had accepted end by themselves. One that was opened between
        its end and our notice waits for its successor, as the socket stays open."""
        waiting = [each for each in self.connections if each.worker == worker]
        if waiting:
            self.loop.call_later(BACK_WITHIN_S, self._give_up, worker, waiting)

    def _give_up(self, worker: int, waiting: list[WorkerConnection]) -> None:
        if not self.workers.is_up[worker]:
            for connection in waiting:
                if connection.worker == worker:
                    connection.transport.abort()
