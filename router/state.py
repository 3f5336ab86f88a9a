"""What the client connections of one router share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.settings.processes import Endpoint
from router.local_answers import Answers
from router.routing import Context
from router.worker_connection import Upstream, Workers

if TYPE_CHECKING:
    from router.replies import ClientReplies


class Hub:
    def __init__(
        self, workers: Workers, brokers: Sequence[Endpoint], max_request_bytes: int
    ) -> None:
        self.workers = workers
        self.max_request_bytes = max_request_bytes
        self.answers = Answers(brokers, workers.is_up)
        self.context = Context(len(workers))
        self.clients: set[ClientReplies] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.loop = asyncio.get_running_loop()

    def connect(self, upstream: Upstream) -> None:
        task = self.loop.create_task(upstream.open(self.workers.paths[upstream.worker]))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
