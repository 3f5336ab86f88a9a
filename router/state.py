"""What all client connections of one router share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from broker.settings.processes import Endpoint
from router.local_answers import LocalAnswers
from router.routing import RoutingTable
from router.worker_connection import WorkerConnection
from router.workers import Workers


class RouterState:
    def __init__(
        self, workers: Workers, brokers: Sequence[Endpoint], max_request_bytes: int
    ) -> None:
        self.workers = workers
        self.max_request_bytes = max_request_bytes
        self.local_answers = LocalAnswers(brokers, workers.is_up)
        self.routing_table = RoutingTable(len(workers))
        self.connecting: set[asyncio.Task[None]] = set()
        self.loop = asyncio.get_running_loop()

    def connect(self, connection: WorkerConnection) -> None:
        path = self.workers.paths[connection.worker]
        task = self.loop.create_task(connection.open(path))
        self.connecting.add(task)
        task.add_done_callback(self.connecting.discard)
