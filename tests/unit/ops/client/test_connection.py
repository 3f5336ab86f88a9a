"""One connection: which versions it agrees on, replies in order, and what ends it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import LENGTH, read_request_header, response_frame
from moldau.broker.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from moldau.broker.wire.messages.describe_cluster import DescribeClusterRequest
from moldau.broker.wire.messages.fetch import FetchRequest
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.broker.wire.primitives import MalformedMessage
from moldau.ops.client import (
    ClientError,
    Cluster,
    Connection,
    UnsupportedVersion,
    Versions,
    error_name,
)

API_VERSIONS, HEARTBEAT = APIS[ApiKey.API_VERSIONS], APIS[ApiKey.HEARTBEAT]
Respond = Callable[[bytes], bytes]


@contextmanager
def listening(respond: Respond) -> Iterator[tuple[str, int]]:
    """A server that answers each frame of one connection with `respond(frame)`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            taken, _ = server.accept()
            # A client that leaves a reply unread resets the connection.
            with taken, taken.makefile("rb") as stream, suppress(ConnectionResetError):
                while head := stream.read(4):
                    taken.sendall(respond(stream.read(LENGTH.unpack(head)[0])))

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()
        thread.join(10)
        assert not thread.is_alive()


class Broker:
    """Serves some versions; a heartbeat's reply carries the version it was asked in."""

    def __init__(self, **served: tuple[int, int]) -> None:
        self.served = served
        self.versions: list[tuple[int, int]] = []

    def __call__(self, frame: bytes) -> bytes:
        header = read_request_header(frame)
        self.versions.append((header.api_key, header.api_version))
        if header.api_key == API_VERSIONS.key:
            keys = {api.name: api.key for api in APIS.values()}
            listed = [ApiVersion(keys[name], *span) for name, span in self.served.items()]
            parts = response_frame(
                API_VERSIONS, 0, header.correlation_id, ApiVersionsResponse(0, listed)
            )
        else:
            reply = HeartbeatResponse(0, header.api_version)
            parts = response_frame(HEARTBEAT, header.api_version, header.correlation_id, reply)
        return b"".join(parts)


def test_the_highest_common_version_is_agreed_on_once() -> None:
    broker = Broker(Heartbeat=(0, 3))
    with listening(broker) as address, Connection(address) as connection:
        assert connection.call(HeartbeatRequest()).error_code == 3
        assert connection.call(HeartbeatRequest()).error_code == 3
    assert broker.versions == [(18, 0), (12, 3), (12, 3)]


def test_versions_can_be_limited_and_named() -> None:
    broker = Broker(Heartbeat=(0, 9))
    limit = {"Heartbeat": Versions(0, 1)}
    with listening(broker) as address, Connection(address, versions=limit) as connection:
        assert connection.call(HeartbeatRequest(), 2).error_code == 2
        assert broker.versions == [(12, 2)]  # nothing had to be agreed on
        assert connection.call(HeartbeatRequest()).error_code == 1


def test_no_version_in_common() -> None:
    broker = Broker(Fetch=(13, 17), FindCoordinator=(0, 3))
    with listening(broker) as address, Connection(address) as connection:
        with pytest.raises(UnsupportedVersion, match="Fetch 13 to 17, and 4 to 12"):
            connection.send(FetchRequest())
        with pytest.raises(UnsupportedVersion, match="FindCoordinator 0 to 3, and 4 to 6"):
            connection.send(FindCoordinatorRequest())
        with pytest.raises(UnsupportedVersion, match="does not serve DescribeCluster"):
            connection.send(DescribeClusterRequest())


def test_replies_belong_to_requests_in_their_order() -> None:
    with listening(Broker()) as address, Connection(address) as connection:
        for version in (0, 1, 2):
            connection.send(HeartbeatRequest(), version)
        assert [connection.receive().error_code for _ in range(3)] == [0, 1, 2]
        assert connection.reply_bytes > 0


def test_a_reply_to_another_request_is_refused() -> None:
    def other(frame: bytes) -> bytes:
        return b"".join(response_frame(HEARTBEAT, 1, 99, HeartbeatResponse()))

    expected = pytest.raises(MalformedMessage, match="reply 99 to request 1")
    with listening(other) as address, Connection(address) as connection, expected:
        connection.call(HeartbeatRequest(), 1)


def test_another_protocol() -> None:
    def web(frame: bytes) -> bytes:
        return b"HTTP/1.1 400 Bad Request\r\n"

    expected = pytest.raises(ClientError, match="is a Moldau broker")
    with listening(web) as address, Cluster([address]) as cluster, expected:
        cluster.nodes()


def test_a_closed_connection() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server, Connection(server.getsockname()) as connection:
        server.accept()[0].close()
        with pytest.raises(OSError, match=r"closed|reset"):
            connection.call(HeartbeatRequest(), 1)


def test_the_first_bootstrap_address_that_answers_is_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()
    broker = Broker(Heartbeat=(0, 4))
    with listening(broker) as address, Cluster([free, address]) as cluster:
        assert cluster.call(HeartbeatRequest()).error_code == 4
        assert (cluster.bootstrap.host, cluster.bootstrap.port) == address
    with pytest.raises(ClientError, match=f"no broker answers at 127.0.0.1:{free[1]}.*serve"):
        Cluster([free]).nodes()


def test_error_names() -> None:
    assert error_name(ErrorCode.NOT_COORDINATOR) == "NOT_COORDINATOR"
    assert error_name(999) == "error 999"
