"""A read_committed consumer that waits for records: see loadtest/bench/transactions.py."""

from __future__ import annotations

import asyncio

from moldau.broker.wire.batch import headers
from moldau.loadtest.bench.harness.client import check_error
from moldau.loadtest.bench.harness.request_connection import RequestConnection
from moldau.loadtest.bench.harness.requests import fetch_request

READ_UNCOMMITTED, READ_COMMITTED = 0, 1  # isolation levels
READ_BYTES = 1 << 20
FETCH_WAIT_MS = 1000


class CommittedReader:
    """A consumer that is parked at the last stable offset of partition 0."""

    def __init__(self, connection: RequestConnection, topic: str) -> None:
        self._connection, self._topic = connection, topic
        self._position = 0
        self._read_at = 0.0  # when the last records came, by time.perf_counter
        self._moved = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def has(self, offset: int) -> float:
        """Wait until it has read this offset; returns when that was, by time.perf_counter."""
        while self._position <= offset:
            if self._task.done():
                self._task.result()  # raises
            self._moved.clear()
            await self._moved.wait()
        return self._read_at

    async def _run(self) -> None:
        try:
            while True:
                await self._fetch()
                self._moved.set()
        finally:
            self._moved.set()

    async def _fetch(self) -> None:
        position = self._topic, 0, self._position
        request = fetch_request(*position, READ_BYTES, FETCH_WAIT_MS, READ_COMMITTED)
        answer = (await self._connection.call(request)).responses[0].partitions[0]
        check_error("Fetch", answer.error_code)
        records = answer.records or b""
        for header in headers(b"".join(records) if isinstance(records, list) else records):
            self._position = header.next_offset
            self._read_at = self._connection.received_at

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
