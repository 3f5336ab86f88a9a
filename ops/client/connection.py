"""One connection to a broker: requests out, replies in, in the same order.

Versions are agreed with the broker (ApiVersions) when the first request is sent without one. Plain
blocking sockets, so it also works under gevent. The broker is at an address, which may need TLS and
SASL (`Security`), or at the path of a unix socket, which needs neither.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, Self, TypeVar

from moldau.broker.errors import ErrorCode
from moldau.broker.private.api import PrivateApi
from moldau.broker.wire.apis import APIS, Api
from moldau.broker.wire.frame import LENGTH, read_response, request_frame
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.primitives import INT32, MalformedMessage
from moldau.broker.wire.schema import Message
from moldau.ops.client.faults import TlsAlert
from moldau.ops.client.names import Address
from moldau.ops.client.sasl import VERSIONS as SASL_VERSIONS
from moldau.ops.client.sasl import authentication
from moldau.ops.client.security import PLAINTEXT, Sasl, Security
from moldau.ops.client.tls import client_context

Q = TypeVar("Q")
A = TypeVar("A")

TIMEOUT_S = 30.0
MAX_REPLY_BYTES = 1 << 28
SESSION_SHARE = 0.8  # of a session, after which to authenticate again
TLS_ALERT = 0x1503  # how a record of TLS begins that is no answer to a request

API_OF: dict[type[Message], Api] = {api.request: api for api in APIS.values()}


class Versions(NamedTuple):
    lowest: int
    highest: int


# What this client is written for, where that is not every version of the API table: topics by
# name, and the forms that name several groups.
VERSIONS: Mapping[str, Versions] = {
    "Produce": Versions(3, 12),
    "Fetch": Versions(4, 12),
    "OffsetCommit": Versions(2, 9),
    "OffsetFetch": Versions(8, 9),
    "FindCoordinator": Versions(4, 6),
}


class UnsupportedVersion(MalformedMessage):
    """Broker and client have no version of an API in common."""


class Connection:
    """One connection. Raises OSError and MalformedMessage; after either it must be closed.

    `call` sends a request and waits for its reply. `send` and `receive` are its halves: any number
    of requests may be sent before their replies are received.
    """

    def __init__(
        self,
        address: Address | str,
        *,
        security: Security = PLAINTEXT,
        timeout: float = TIMEOUT_S,
        client_id: str = "moldau",
        versions: Mapping[str, Versions] = VERSIONS,
        introduction: bytes = b"",
    ) -> None:
        """`address` is a host and a port, or the path of a unix socket. `security` is that of
        addresses: a unix socket is the operator's own, who may speak for someone else there: the
        preamble that says so is `introduction`."""
        self._client_id = client_id
        self._wanted = versions
        self._chosen: dict[type[Message], int] = {}
        self._served: dict[int, Versions] | None = None
        self._correlation_id = 0
        self._expected: deque[tuple[Api, int, int]] = deque()
        self.reply_bytes = 0  # of the last reply
        self._sasl = None if isinstance(address, str) else security.sasl
        self._session_ends: float | None = None
        self._socket = _connected(address, security, timeout)
        try:
            if introduction:
                self._socket.sendall(introduction)
            if self._sasl is not None:
                self.authenticate(self._sasl)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def call(self, request: Message, version: int | None = None) -> Any:
        """The reply to a request, in this version or the highest both sides know."""
        self.send(request, version)
        return self.receive()

    def send(self, request: Message, version: int | None = None, *, has_reply: bool = True) -> None:
        """`has_reply` is False for the one request without: Produce with acks=0."""
        if self._session_ends is not None and not self._expected:
            self._renew_session()
        api = API_OF[type(request)]
        if version is None:
            version = self._chosen.get(type(request))
            if version is None:
                version = self._chosen[type(request)] = self._choose(api)
        self._correlation_id += 1
        frame = request_frame(api, version, self._correlation_id, self._client_id, request)
        self._socket.sendall(frame)
        if has_reply:
            self._expected.append((api, version, self._correlation_id))

    def receive(self) -> Any:
        """The reply to the oldest request that has none yet."""
        api, version, sent = self._expected.popleft()
        (size,) = LENGTH.unpack(self._read(LENGTH.size))
        if not 0 < size < MAX_REPLY_BYTES:  # most likely the first letters of another protocol
            kind = TlsAlert if size >> 16 == TLS_ALERT else MalformedMessage
            raise kind(f"a reply of {size} bytes")
        correlation_id, reply = read_response(api, version, self._read(size))
        if correlation_id != sent:
            raise MalformedMessage(f"reply {correlation_id} to request {sent}")
        self.reply_bytes = size
        return reply

    def ask_private(self, api: PrivateApi[Q, A], request: Q) -> A:
        """A private request, over a unix socket and with no other on its way. Raises ValueError,
        too."""
        self._socket.sendall(api.request(request))
        (size,) = LENGTH.unpack(self._read(LENGTH.size))
        if not INT32.size <= size < MAX_REPLY_BYTES:
            raise MalformedMessage(f"a reply of {size} bytes")
        return api.read_answer(self._read(size)[INT32.size :])

    def authenticate(self, sasl: Sasl) -> None:
        """Raises AuthenticationFailed, too."""
        self._session_ends = None
        steps = authentication(sasl)
        request = next(steps)
        while True:
            answer = self.call(request, SASL_VERSIONS[type(request)])
            try:
                request = steps.send(answer)
            except StopIteration as end:
                if end.value:
                    self._session_ends = time.monotonic() + end.value / 1000 * SESSION_SHARE
                return

    def _renew_session(self) -> None:
        """Brokers with connections.max.reauth.ms close a connection that does not (KIP-368)."""
        assert self._sasl is not None
        assert self._session_ends is not None
        if time.monotonic() > self._session_ends:
            self.authenticate(self._sasl)

    def negotiate(self) -> None:
        """Ask which versions the broker serves. `send` does it when it has to know."""
        reply = self.call(ApiVersionsRequest(), 0)
        if reply.error_code:
            raise MalformedMessage(f"ApiVersions: {error_name(reply.error_code)}")
        self._served = {
            api.api_key: Versions(api.min_version, api.max_version) for api in reply.api_keys
        }

    def _choose(self, api: Api) -> int:
        if self._served is None:
            self.negotiate()
            assert self._served is not None
        mine = self._wanted.get(api.name, Versions(api.lowest, api.highest))
        theirs = self._served.get(api.key)
        if theirs is None:
            raise UnsupportedVersion(f"it does not serve {api.name}")
        highest = min(mine.highest, theirs.highest)
        if highest < max(mine.lowest, theirs.lowest):
            raise UnsupportedVersion(
                f"it serves {api.name} {theirs.lowest} to {theirs.highest}, "
                f"and {mine.lowest} to {mine.highest} is needed"
            )
        return highest

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        with memoryview(data) as view:
            at = 0
            while at < size:
                count = self._socket.recv_into(view[at:])
                if not count:
                    raise ConnectionError("the broker closed the connection")
                at += count
        return data


def _connected(address: Address | str, security: Security, timeout: float) -> socket.socket:
    if isinstance(address, str):
        made = socket.socket(socket.AF_UNIX)
        try:
            made.settimeout(timeout)
            made.connect(address)
        except BaseException:
            made.close()
            raise
        return made
    context = None if security.tls is None else client_context(security.tls)
    made = socket.create_connection(address, timeout)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made if context is None else context.wrap_socket(made, server_hostname=address[0])
    except BaseException:
        made.close()
        raise


def error_name(code: int) -> str:
    """Kafka's name of an error code, also of one this version does not know."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
