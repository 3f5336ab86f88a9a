"""Clients that log in and hang up, at a rate, in a process of their own.

    python -m tests.integration.security.login_storm PORT RATE SECONDS MECHANISM [CA]

Connections come when they are due, whether earlier ones are through or not, so that a server that
cannot keep up is found out. PBKDF2 is computed once: what is measured is the server. At the end
one JSON line says what came of it, and what it took (`Storm`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import socket
import ssl
import statistics
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import uvloop

from moldau.broker.wire.frame import LENGTH, LENGTH_SIZE, read_response, request_frame
from moldau.broker.wire.schema import Message
from moldau.ops.client.connection import API_OF
from moldau.ops.client.sasl import VERSIONS, authentication
from moldau.ops.client.security import Sasl
from tests.support.brokers.running import ROOT, clean_environment

USER, PASSWORD = "alice", "secret"
# As many connections as one address can have to a port are too few for a storm.
_addresses = itertools.cycle(f"127.0.8.{number}" for number in range(1, 100))
IP_BIND_ADDRESS_NO_PORT = 24
MAX_AT_ONCE = 2000  # connections; more, and the storm itself has failed
PATIENCE_S = 60.0
MAX_FAULTS = 100  # in the result


class Storm(msgspec.Struct):
    """What a storm was: by the client's own account."""

    due: int  # connections that were opened
    logins: int
    faults: list[str]  # the first ones
    seconds: float  # until the last one was through
    cpu_seconds: float  # of the client
    p50: float  # of logins, in seconds, from when they were due
    p99: float

    @property
    def per_second(self) -> float:
        return self.logins / self.seconds


class _Visitor(asyncio.Protocol):
    """Logs in, and hangs up."""

    def __init__(self, sasl: Sasl) -> None:
        self._steps = authentication(sasl)
        self._request: Message = next(self._steps)
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        request = self._request
        version = VERSIONS[type(request)]
        self._transport.write(request_frame(API_OF[type(request)], version, 1, "storm", request))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < LENGTH_SIZE:
            return
        (size,) = LENGTH.unpack_from(self._received)
        if len(self._received) < LENGTH_SIZE + size:
            return
        request, frame = self._request, self._received[LENGTH_SIZE:]
        self._received = b""
        _, answer = read_response(API_OF[type(request)], VERSIONS[type(request)], frame)
        try:
            self._request = self._steps.send(answer)
        except StopIteration:
            self._end("")
        except ConnectionError as fault:
            self._end(str(fault))
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"the broker hung up: {exc}")

    def _end(self, fault: str) -> None:
        if not self.over.done():
            self.over.set_result(fault)
        if self._transport is not None:
            self._transport.abort()


async def _storm(port: int, rate: float, seconds: float, mechanism: str, ca: str) -> Storm:
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context(cafile=ca) if ca else None
    sasl = Sasl(mechanism, USER, PASSWORD)
    faults: list[str] = []
    latencies: list[float] = []
    visits: set[asyncio.Task[None]] = set()

    async def visit(due: float) -> None:
        try:
            _, visitor = await loop.create_connection(
                lambda: _Visitor(sasl),
                sock=await _connected(port),
                ssl=context,
                server_hostname="localhost" if context else None,
            )
            fault = await visitor.over
        except OSError as error:
            fault = str(error)
        if fault:
            faults.append(fault)
        else:
            latencies.append(loop.time() - due)

    await visit(loop.time())  # PBKDF2
    latencies.clear()
    before, begun = _cpu(), loop.time()
    opened = 0
    while (at := loop.time() - begun) < seconds:
        while opened < at * rate:
            if len(visits) >= MAX_AT_ONCE:
                faults.append("too many connections at once")
                break
            task = loop.create_task(visit(begun + opened / rate))
            visits.add(task)
            task.add_done_callback(visits.discard)
            opened += 1
        await asyncio.sleep(0.001)
    if visits:
        await asyncio.wait(visits, timeout=PATIENCE_S)
    faults += ["no answer"] * len(visits)
    took = loop.time() - begun
    hundredths = statistics.quantiles(latencies, n=100) if len(latencies) > 1 else [0.0] * 99
    return Storm(
        opened,
        len(latencies),
        faults[:MAX_FAULTS],
        took,
        _cpu() - before,
        hundredths[49],
        hundredths[98],
    )


async def _connected(port: int) -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    # Or bind would look for a port that no connection of the last minute has had, and find none.
    made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    made.bind((next(_addresses), 0))
    try:
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    except OSError:
        made.close()
        raise
    return made


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Storming:
    """A storm in another process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._storm: Storm | None = None

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def result(self) -> Storm:
        if self._storm is None:
            out, _ = self._process.communicate(timeout=2 * PATIENCE_S)
            assert self._process.returncode == 0
            self._storm = msgspec.json.decode(out, type=Storm)
        return self._storm


@contextlib.contextmanager
def storming(
    port: int, rate: float, seconds: float, mechanism: str, ca: str = ""
) -> Iterator[Storming]:
    """The client has the lower priority: it stands for machines of its own."""
    words = [str(port), str(rate), str(seconds), mechanism, ca]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.integration.security.login_storm", *words],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield Storming(process)
        finally:
            if process.poll() is None:
                process.kill()


def main() -> None:
    port, rate, seconds, mechanism, *ca = sys.argv[1:]
    os.nice(5)
    made = uvloop.run(_storm(int(port), float(rate), float(seconds), mechanism, "".join(ca)))
    sys.stdout.buffer.write(msgspec.json.encode(made))


if __name__ == "__main__":
    main()
