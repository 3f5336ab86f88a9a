"""A connection that reconnects by itself and reports every request, on top of ops/client.

Versions are negotiated with the broker (ApiVersions), at most those in VERSIONS: the last that name
topics by name. Every request goes to `report`, with the time since it was due, the size of the
response, and the error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from moldau.broker.wire.primitives import MalformedMessage
from moldau.broker.wire.schema import Message
from moldau.ops.client import API_OF, PLAINTEXT, Address, Connection, Security, Versions, error_name

TIMEOUT_S = 70.0  # longer than a rebalance may take
VERSIONS = {
    name: Versions(0, highest)
    for name, highest in {
        "Produce": 9,
        "Fetch": 12,
        "ListOffsets": 6,
        "Metadata": 9,
        "OffsetCommit": 8,
        "OffsetFetch": 8,
        "FindCoordinator": 3,
        "JoinGroup": 7,
        "Heartbeat": 4,
        "LeaveGroup": 4,
        "SyncGroup": 5,
        "DescribeGroups": 5,
        "ListGroups": 4,
        "CreateTopics": 5,
        "InitProducerId": 4,
        "AddPartitionsToTxn": 3,
        "EndTxn": 3,
        "DescribeConfigs": 4,
        "DescribeCluster": 0,
    }.items()
}

# API, seconds since it was due, bytes of the response, error
Report = Callable[[str, float, int, Exception | None], None]
ErrorOf = Callable[[Any], int]


class RequestRefused(RuntimeError):
    """The broker responded with an error code."""

    def __init__(self, api: str, code: int) -> None:
        super().__init__(f"{api}: {error_name(code)}")
        self.code = code


def top_level_error(answer: Any) -> int:
    code: int = answer.error_code
    return code


class UserConnection:
    """Connects when it is needed. Raises OSError, MalformedMessage, RequestRefused."""

    def __init__(
        self,
        address: Address,
        client_id: str,
        report: Report,
        security: Security = PLAINTEXT,
    ) -> None:
        self._address = address
        self._client_id = client_id
        self._report = report
        self._security = security
        self._connection: Connection | None = None

    def call(
        self,
        request: Message,
        error_of: ErrorOf | None = None,
        *,
        due: float | None = None,
        expected: Collection[int] = (),
    ) -> Any:
        """The response. An error code that is not in `expected` is reported and raised."""
        api = API_OF[type(request)].name
        began = time.perf_counter() if due is None else due
        size = 0
        try:
            connection = self._connected()
            answer = connection.call(request)
            size = connection.reply_bytes
            code = 0 if error_of is None else error_of(answer)
            if code and code not in expected:
                raise RequestRefused(api, code)
        except (OSError, MalformedMessage) as error:
            self.close()
            self._report(api, time.perf_counter() - began, size, error)
            raise
        except RequestRefused as error:
            self._report(api, time.perf_counter() - began, size, error)
            raise
        except BaseException:  # greenlet killed: the next response would be to this request
            self.close()
            raise
        self._report(api, time.perf_counter() - began, size, None)
        return answer

    def send(self, request: Message, *, due: float) -> None:
        """A request without a response: Produce with acks=0."""
        api = API_OF[type(request)].name
        try:
            self._connected().send(request, has_reply=False)
        except (OSError, MalformedMessage) as error:
            self.close()
            self._report(api, time.perf_counter() - due, 0, error)
            raise
        except BaseException:
            self.close()
            raise
        self._report(api, time.perf_counter() - due, 0, None)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> Connection:
        if self._connection is None:
            made = Connection(
                self._address,
                security=self._security,
                timeout=TIMEOUT_S,
                client_id=self._client_id,
                versions=VERSIONS,
            )
            try:
                began = time.perf_counter()
                made.negotiate()
                elapsed = time.perf_counter() - began
                self._report("ApiVersions", elapsed, made.reply_bytes, None)
            except BaseException:
                made.close()
                raise
            self._connection = made
        return self._connection
