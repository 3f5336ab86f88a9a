"""The HTTP process serves metrics and health here, and leaves everything else to the console.

A plain ASGI application, so that both work without the packages of the console.
"""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, NamedTuple

import msgspec

from moldau.ops.http import health
from moldau.ops.http.collector import Collector
from moldau.ops.http.families import families
from moldau.ops.http.prometheus import CONTENT_TYPE, text_of
from moldau.ops.http.snapshot import Snapshot, usages

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

HERE = "Moldau: /metrics, /livez, /readyz, /healthz\n"
# In the console at once: in all, and from an address. Metrics and health are not counted.
MAX_REQUESTS = 192
MAX_REQUESTS_OF_ADDRESS = 128
BUSY = b"too many requests at once: try again in a moment\n"


class Answer(NamedTuple):
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class HttpApp:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self.console: AsgiApp | None = None
        self.why_no_console = ""
        self._requests = Requests()
        self._asking: asyncio.Task[Snapshot] | None = None
        self._build = (version("moldau"), platform.python_version())
        self._routes: dict[str, Callable[[], Awaitable[Answer]]] = {
            "/metrics": self.metrics,
            "/livez": self.livez,
            "/readyz": self.readyz,
            "/healthz": self.healthz,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        route = self._routes.get(scope["path"]) if kind == "http" else None
        if route is not None:
            if scope["method"] in ("GET", "HEAD"):
                await _send(send, await route())
            else:
                await _send(send, Answer(405, b"only GET and HEAD\n"))
        elif self.console is not None:
            await self._ask_console(self.console, scope, receive, send)
        elif kind == "http":
            is_root = scope["path"] == "/"
            text = HERE + self.why_no_console
            await _send(send, Answer(200 if is_root else 404, text.encode()))

    async def _ask_console(
        self, console: AsgiApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        client = scope.get("client")
        try:
            with self._requests.one(client[0] if client else ""):
                await console(scope, receive, send)
        except TooManyRequests:
            await _send(send, Answer(503, BUSY))

    async def snapshot(self) -> Snapshot:
        """The processes are asked once for all that ask at the same time."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._collector.collect())
        return await asyncio.shield(self._asking)

    async def metrics(self) -> Answer:
        snapshot = await self.snapshot()
        found = families(snapshot, usages(snapshot.status), self._build)
        return Answer(200, text_of(found).encode(), CONTENT_TYPE)

    async def livez(self) -> Answer:
        if await self._collector.status() is None:
            return Answer(503, b"the supervisor does not answer\n")
        return Answer(200, b"ok\n")

    async def readyz(self) -> Answer:
        found = health.problems(await self.snapshot())
        if found:
            return Answer(503, ("; ".join(found) + "\n").encode())
        return Answer(200, b"ok\n")

    async def healthz(self) -> Answer:
        facts = health.facts(await self.snapshot())
        body = msgspec.json.encode(facts) + b"\n"
        return Answer(503 if facts["problems"] else 200, body, "application/json")


async def _send(send: Send, answer: Answer) -> None:
    headers = [
        (b"content-type", answer.content_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


class TooManyRequests(Exception):
    """So many are being answered that no further one is begun."""


class Requests:
    """Counts the requests in the console."""

    def __init__(
        self, most: int = MAX_REQUESTS, most_of_address: int = MAX_REQUESTS_OF_ADDRESS
    ) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._by_address: Counter[str] = Counter()

    @contextmanager
    def one(self, address: str) -> Iterator[None]:
        """Raises TooManyRequests."""
        own = self._by_address[address]
        if own >= self._most_of_address or self._by_address.total() >= self._most:
            raise TooManyRequests
        self._by_address[address] = own + 1
        try:
            yield
        finally:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
