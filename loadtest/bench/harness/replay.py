"""Clients that do as little work per request as possible, so that the broker is measured.

A frame is encoded once and sent again and again, a fixed number in flight per connection. Of the
replies only the lengths are read; benchmarks check before and after a run that requests succeed.
One uvloop drives all connections of a run. The same load can go to a store, for the baseline.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from moldau.broker.wire.frame import LENGTH
from moldau.loadtest.bench.harness.frames import end
from moldau.loadtest.bench.harness.secured import open_connection


class Totals(NamedTuple):
    """The result of a run."""

    requests: int
    received: int
    seconds: float
    latencies: list[float]  # seconds, sorted

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds

    def percentile_ms(self, share: float) -> float:
        if not self.latencies:
            return 0.0
        return self.latencies[min(int(len(self.latencies) * share), len(self.latencies) - 1)] * 1e3


class Replayer(asyncio.Protocol):
    """One connection to a broker: keeps `in_flight` requests in flight until the run is over."""

    def __init__(self, frames: Sequence[bytes], in_flight: int) -> None:
        self._frames = frames
        self._turn = 0
        self._in_flight = in_flight
        self._left = 0  # bytes of the reply that is being received
        self._head = b""
        self._sent_at: deque[float] = deque()
        self._transport: asyncio.Transport | None = None
        self.over = False
        self.requests = 0
        self.received = 0
        self.latencies: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def begin(self) -> None:
        self._send(self._in_flight)

    def close(self) -> None:
        if self._transport is not None:
            end(self._transport)

    def _send(self, count: int) -> None:
        assert self._transport is not None
        now = time.perf_counter()
        frames = self._frames
        out = []
        for _ in range(count):
            out.append(frames[self._turn])
            self._turn = (self._turn + 1) % len(frames)
            self._sent_at.append(now)
        if len(out[0]) < 16384:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    def data_received(self, data: bytes) -> None:
        replies = self._count(data)
        self.received += len(data)
        if not replies:
            return
        now = time.perf_counter()
        for _ in range(replies):
            self.latencies.append(now - self._sent_at.popleft())
        self.requests += replies
        if not self.over:
            self._send(replies)
        elif not self._sent_at and not self.done.done():
            self.done.set_result(None)

    def _count(self, data: bytes) -> int:
        """How many replies end in `data`; their content is not kept."""
        at, end, count = 0, len(data), 0
        while at < end:
            if self._left:
                step = min(self._left, end - at)
                self._left -= step
                at += step
                if not self._left:
                    count += 1
                continue
            if not self._head and end - at >= 4:
                (self._left,) = LENGTH.unpack_from(data, at)
                at += 4
                continue
            take = min(4 - len(self._head), end - at)
            self._head += data[at : at + take]
            at += take
            if len(self._head) == 4:
                (self._left,) = LENGTH.unpack(self._head)
                self._head = b""
        return count

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"connection closed during the run: {exc}"))


class XaddReplayer(Replayer):
    """One connection to a store, for commands answered with one bulk string: two lines."""

    def _count(self, data: bytes) -> int:
        if b"-" in (data[:1], self._head):
            raise ConnectionError(f"the store refused: {data[:200]!r}")
        lines = data.count(b"\n") + self._left
        self._left = lines % 2
        return lines // 2


class FixedReplyReplayer(Replayer):
    """One connection to a store, for a command whose reply has a known size."""

    def __init__(self, command: bytes, in_flight: int, reply_size: int) -> None:
        super().__init__([command], in_flight)
        self._reply_size = reply_size

    def _count(self, data: bytes) -> int:
        whole, self._left = divmod(self._left + len(data), self._reply_size)
        return whole


class CountedReplayer(Replayer):
    """A fixed number of requests."""

    def __init__(self, frame: bytes, in_flight: int, requests: int) -> None:
        super().__init__([frame], min(in_flight, requests))
        self._unsent = requests

    def _send(self, count: int) -> None:
        count = min(count, self._unsent)
        self._unsent -= count
        if count:
            super()._send(count)
        elif not self._sent_at and not self.done.done():
            self.done.set_result(None)


Connect = Callable[[], Replayer]
Address = str | tuple[str, int]  # the path of a unix socket, or host and port
Connection = tuple[Connect, Address]


def replaying(frames: Sequence[bytes], in_flight: int, address: Address) -> Connection:
    return lambda: Replayer(frames, in_flight), address


async def run_load(connections: Sequence[Connection], seconds: float) -> Totals:
    """Open the connections, load them, sum up."""
    clients: list[Replayer] = []
    for make, address in connections:
        clients.append(await open_connection(make, address))
    started = time.perf_counter()
    for client in clients:
        client.begin()
    waiting = [client.done for client in clients]
    await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for client in clients:
        client.over = True
    await asyncio.gather(*waiting)
    elapsed = time.perf_counter() - started
    for client in clients:
        client.close()
    return Totals(
        sum(client.requests for client in clients),
        sum(client.received for client in clients),
        elapsed,
        sorted(value for client in clients for value in client.latencies),
    )
