"""A TCP proxy before a store that holds, delays and cuts: what networks do to connections.

    async with StoreProxy(6379) as proxy:          # clients connect to proxy.url
        link = await proxy.link("moldau-0-bulk")   # a connection, by the name it gave itself
        link.requests.hold()                       # bytes are read from the client, not passed on
        link.cut_client()                          # the client sees a lost connection ...
        link.requests.release()                    # ... and its bytes arrive all the same, late

`ProxyThread` runs one beside a test that blocks, and can lead to another store. Every byte comes
from a real client and goes to a real server; nothing here knows the protocol but for the name in
CLIENT SETNAME.
"""

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable
from typing import Self, cast

import uvloop

_NAME = re.compile(rb"SETNAME\r\n\$\d+\r\n([^\r]+)\r\n")


class Flow:
    """The bytes of one direction: passed on at once, unless held."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._target: asyncio.WriteTransport | None = None
        self._held = False
        self._ended = False
        self._stop_at: int | None = None
        self._on_stop: Callable[[], None] = lambda: None
        self.passed = 0

    @property
    def waiting(self) -> int:
        """Bytes that are held."""
        return len(self._buffer)

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        self._held = False
        self._pass_on()

    def stop_after(self, count: int, then: Callable[[], None]) -> None:
        """Let `count` more bytes through, hold what follows, and call `then` once it comes."""
        self._stop_at = self.passed + count
        self._on_stop = then

    def connect(self, target: asyncio.WriteTransport) -> None:
        self._target = target
        self._pass_on()

    def feed(self, data: bytes) -> None:
        self._buffer += data
        self._pass_on()

    def end(self) -> None:
        """The sender is gone: close the receiver's side once everything is passed on."""
        self._ended = True
        self._pass_on()

    def _pass_on(self) -> None:
        if self._held or self._target is None:
            return
        left = len(self._buffer)
        stopping = self._stop_at is not None and self.passed + left > self._stop_at
        if stopping and self._stop_at is not None:
            left = self._stop_at - self.passed
            self._stop_at = None
        if left:
            if not self._target.is_closing():  # else it is lost
                self._target.write(bytes(self._buffer[:left]))
            del self._buffer[:left]
            self.passed += left
        if stopping:
            self._held = True
            self._on_stop()
        elif self._ended and not self._buffer:
            self._target.close()


class Link:
    """One connection through the proxy: requests go up to the store, replies come down."""

    def __init__(self, proxy: "StoreProxy") -> None:
        self._proxy = proxy
        self._opening = b""
        self.name = ""
        self.requests = Flow()
        self.replies = Flow()
        self.client: asyncio.Transport | None = None
        self.server: asyncio.Transport | None = None
        self.is_lost = asyncio.Event()  # the client's side is closed

    def cut(self) -> None:
        """Both sides, at once: what is held is lost."""
        self.cut_client()
        if self.server is not None:
            self.server.abort()

    def cut_client(self) -> None:
        """The client's side; what it sent can still be passed on."""
        if self.client is not None:
            self.client.abort()

    def saw_request(self, data: bytes) -> None:
        if not self.name:
            self._opening = (self._opening + data)[:4096]
            found = _NAME.search(self._opening)
            if found is not None:
                self.name = found[1].decode()
                self._proxy.named(self)
        self.requests.feed(data)


class _ClientSide(asyncio.Protocol):
    def __init__(self, link: Link, proxy: "StoreProxy") -> None:
        self._link = link
        self._proxy = proxy

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link.client = cast("asyncio.Transport", transport)
        self._link.replies.connect(self._link.client)
        self._proxy.open_upstream(self._link)

    def data_received(self, data: bytes) -> None:
        self._link.saw_request(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.is_lost.set()
        self._link.requests.end()


class _ServerSide(asyncio.Protocol):
    def __init__(self, link: Link) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link.server = cast("asyncio.Transport", transport)
        self._link.requests.connect(self._link.server)

    def data_received(self, data: bytes) -> None:
        client = self._link.client
        if client is not None and not client.is_closing():
            self._link.replies.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.replies.end()


class StoreProxy:
    """See the module. Used within one event loop."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._server: asyncio.Server | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self.port = 0
        self.links: list[Link] = []
        self.on_link: Callable[[Link], None] = lambda link: None  # called once its name is known
        self.refusing = False  # new connections are closed at once

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for link in self.links:
            link.cut()
        await asyncio.gather(*self._opening, return_exceptions=True)
        await asyncio.sleep(0.01)  # let the transports end

    def _accept(self) -> asyncio.Protocol:
        link = Link(self)
        self.links.append(link)
        return _ClientSide(link, self)

    def open_upstream(self, link: Link) -> None:
        if self.refusing:
            link.cut_client()
            return
        task = asyncio.get_running_loop().create_task(self._open(link))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(
                lambda: _ServerSide(link), "127.0.0.1", self._upstream_port
            )
        except OSError:
            link.cut_client()  # the store is down: so is what the client sees

    def point_at(self, upstream_port: int, *, cut: bool) -> None:
        """Lead new connections to another store; those there are stay or are cut."""
        self._upstream_port = upstream_port
        self.refusing = False
        if cut:
            self.cut_all()

    def cut_all(self) -> None:
        for link in self.links:
            link.cut()
        self.links.clear()

    def named(self, link: Link) -> None:
        self.on_link(link)

    def live(self, name: str) -> Link | None:
        """The open connection that calls itself so, if there is one."""
        for link in reversed(self.links):
            if link.name == name and not link.is_lost.is_set():
                return link
        return None

    async def link(self, name: str, *, other_than: Link | None = None) -> Link:
        """The open connection of that name, once there is one."""
        async with asyncio.timeout(30):
            while (found := self.live(name)) is None or found is other_than:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            return found


class ProxyThread:
    """A StoreProxy in a thread of its own: `with ProxyThread(6379, on_link=…) as proxy`."""

    def __init__(self, upstream_port: int, on_link: Callable[[Link], None]) -> None:
        self._on_link = on_link
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run()))
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._proxy = StoreProxy(upstream_port)
        self.port = 0

    def call(self, work: Callable[[], None]) -> None:
        """Do something in the proxy's thread: links are its alone."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(work)

    def point_at(self, upstream_port: int, *, cut: bool = True) -> None:
        self.call(lambda: self._proxy.point_at(upstream_port, cut=cut))

    def refuse(self) -> None:
        """Cut every connection and take no new one, until it points somewhere again."""

        def refuse() -> None:
            self._proxy.refusing = True
            self._proxy.cut_all()

        self.call(refuse)

    def fall_silent(self) -> None:
        """Pass nothing on, and take no new connection: a network that is cut."""

        def hold() -> None:
            self._proxy.refusing = True
            for link in self._proxy.links:
                link.requests.hold()
                link.replies.hold()

        self.call(hold)

    def speak_again(self) -> None:
        """Pass on what has waited."""

        def release() -> None:
            self._proxy.refusing = False
            for link in self._proxy.links:
                link.requests.release()
                link.replies.release()

        self.call(release)

    def links(self) -> list[Link]:
        return [link for link in self._proxy.links if not link.is_lost.is_set()]

    async def _run(self) -> None:
        async with self._proxy as proxy:
            proxy.on_link = self._on_link
            self.port = proxy.port
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            self._started.set()
            await self._stop.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(20), "the proxy did not start"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
