"""One blocking connection that reconnects by itself and reports every request.

Versions are negotiated with the broker (ApiVersions), at most those in VERSIONS: the last that name
topics by name. Every request goes to `report`, with the time since it was due, the size of the
response, and the error.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection
from typing import Any

from broker.errors import ErrorCode
from broker.wire.apis import APIS, Api
from broker.wire.frame import LENGTH, read_response, request_frame
from broker.wire.messages.api_versions import ApiVersionsRequest
from broker.wire.primitives import MalformedMessage
from broker.wire.schema import Message

TIMEOUT_S = 70.0  # longer than a rebalance may take
API_VERSIONS = APIS[18]
VERSIONS = {
    "Produce": 9,
    "Fetch": 12,
    "ListOffsets": 6,
    "Metadata": 9,
    "OffsetCommit": 8,
    "OffsetFetch": 7,
    "FindCoordinator": 3,
    "JoinGroup": 7,
    "Heartbeat": 4,
    "LeaveGroup": 4,
    "SyncGroup": 5,
    "DescribeGroups": 5,
    "ListGroups": 4,
    "CreateTopics": 5,
    "InitProducerId": 4,
    "DescribeConfigs": 4,
    "DescribeCluster": 0,
}

Address = tuple[str, int]
# API, seconds since it was due, bytes of the response, error
Report = Callable[[str, float, int, Exception | None], None]
ErrorOf = Callable[[Any], int]

_BY_REQUEST: dict[type[Message], Api] = {api.request: api for api in APIS.values()}


class RequestRefused(RuntimeError):
    """The broker responded with an error code."""

    def __init__(self, api: str, code: int) -> None:
        super().__init__(f"{api}: {error_name(code)}")
        self.code = code


def error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def top_level_error(answer: Any) -> int:
    code: int = answer.error_code
    return code


class UserConnection:
    """Connects when it is needed. Raises OSError, MalformedMessage, RequestRefused."""

    def __init__(
        self, address: Address, client_id: str, report: Report, timeout: float = TIMEOUT_S
    ) -> None:
        self.address = address
        self._client_id = client_id
        self._report = report
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._highest: dict[int, int] = {}
        self._correlation = 0

    def call(
        self,
        request: Message,
        error_of: ErrorOf | None = None,
        *,
        due: float | None = None,
        expected: Collection[int] = (),
    ) -> Any:
        """The response. An error code that is not in `expected` is reported and raised."""
        api = _BY_REQUEST[type(request)]
        began = time.perf_counter() if due is None else due
        size = 0
        try:
            size, answer = self._exchange(api, request)
            code = 0 if error_of is None else error_of(answer)
            if code and code not in expected:
                raise RequestRefused(api.name, code)
        except (OSError, MalformedMessage) as error:
            self.close()
            self._report(api.name, time.perf_counter() - began, size, error)
            raise
        except RequestRefused as error:
            self._report(api.name, time.perf_counter() - began, size, error)
            raise
        except BaseException:  # greenlet killed: the next response on it would be to this request
            self.close()
            raise
        self._report(api.name, time.perf_counter() - began, size, None)
        return answer

    def send(self, request: Message, *, due: float) -> None:
        """A request without a response: Produce with acks=0."""
        api = _BY_REQUEST[type(request)]
        try:
            self._open().sendall(self._frame(api, request))
        except OSError as error:
            self.close()
            self._report(api.name, time.perf_counter() - due, 0, error)
            raise
        except BaseException:
            self.close()
            raise
        self._report(api.name, time.perf_counter() - due, 0, None)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _exchange(self, api: Api, request: Message) -> tuple[int, Any]:
        connection = self._open()
        connection.sendall(self._frame(api, request))
        return self._answer(connection, api, self._version(api))

    def _frame(self, api: Api, request: Message) -> bytes:
        self._correlation += 1
        version = self._version(api)
        return request_frame(api, version, self._correlation, self._client_id, request)

    def _version(self, api: Api) -> int:
        known = min(VERSIONS[api.name], self._highest.get(api.key, VERSIONS[api.name]))
        return known if api is not API_VERSIONS else 0

    def _answer(self, connection: socket.socket, api: Api, version: int) -> tuple[int, Any]:
        (size,) = LENGTH.unpack(_receive(connection, LENGTH.size))
        correlation, answer = read_response(api, version, _receive(connection, size))
        if correlation != self._correlation:
            raise MalformedMessage(f"reply {correlation} to request {self._correlation}")
        return size, answer

    def _open(self) -> socket.socket:
        if self._socket is None:
            made = socket.create_connection(self.address, self._timeout)
            try:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._negotiate_versions(made)
            except BaseException:
                made.close()
                raise
            self._socket = made
        return self._socket

    def _negotiate_versions(self, connection: socket.socket) -> None:
        began = time.perf_counter()
        self._correlation += 1
        frame = request_frame(
            API_VERSIONS, 0, self._correlation, self._client_id, ApiVersionsRequest()
        )
        connection.sendall(frame)
        size, answer = self._answer(connection, API_VERSIONS, 0)
        self._report(API_VERSIONS.name, time.perf_counter() - began, size, None)
        self._highest = {api.api_key: api.max_version for api in answer.api_keys}


def _receive(connection: socket.socket, size: int) -> bytearray:
    got = bytearray(size)
    view, at = memoryview(got), 0
    while at < size:
        count = connection.recv_into(view[at:])
        if not count:
            raise ConnectionError("the broker closed the connection")
        at += count
    return got
