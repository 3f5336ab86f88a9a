"""A client that a worker takes for anyone: over its unix socket, introduced by a preamble.

What routers do for their clients. Without an identity it is the operator, who may do everything.

    with IdentifiedClient(broker, Identity("User:alice", "10.0.0.1")) as alice:
        response = alice.call(MetadataRequest(None), version=9)
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from typing import Any, Self

from moldau.broker.private.table import PREAMBLE
from moldau.broker.security.acl import Acl
from moldau.broker.security.identity import Identity
from moldau.broker.wire.apis import APIS
from moldau.broker.wire.frame import LENGTH, read_response, request_frame
from moldau.broker.wire.messages.create_acls import AclCreation, CreateAclsRequest
from moldau.broker.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from moldau.broker.wire.schema import Message
from moldau.ops.serve.runtime import worker_socket
from tests.support.brokers.running import Broker

API_OF = {api.request: api for api in APIS.values()}


class IdentifiedClient:
    def __init__(
        self, broker: Broker, identity: Identity | None = None, worker: int = 0, timeout: float = 30
    ) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout)
        self._socket.connect(str(worker_socket(broker.directory / "run", broker.port, worker)))
        self._number = 0
        if identity is not None:
            self._socket.sendall(PREAMBLE.request(identity))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def call(self, request: Message, version: int | None = None) -> Any:
        api = API_OF[type(request)]
        version = api.highest if version is None else version
        self._number += 1
        self._socket.sendall(request_frame(api, version, self._number, "test", request))
        (size,) = LENGTH.unpack(self._read(LENGTH.size))
        number, reply = read_response(api, version, bytearray(self._read(size)))
        assert number == self._number
        return reply

    def send(self, request: Message, version: int) -> None:
        """One that has no reply."""
        api = API_OF[type(request)]
        self._socket.sendall(request_frame(api, version, 0, "test", request))

    def must_be_closed(self) -> None:
        with contextlib.suppress(ConnectionError):
            assert self._socket.recv(1) == b""

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            assert piece, "the worker closed the connection"
            data += piece
        return data

    # --- ACLs ---

    def create(self, acls: Iterable[Acl]) -> list[int]:
        """The error codes."""
        creations = [
            AclCreation(
                acl.resource,
                acl.name,
                acl.pattern,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission,
            )
            for acl in acls
        ]
        return [result.error_code for result in self.call(CreateAclsRequest(creations)).results]

    def delete_of(self, principal: str) -> int:
        """How many ACLs of a principal were deleted."""
        wanted = DeleteAclsFilter(1, None, 1, principal, None, 1, 1)
        (result,) = self.call(DeleteAclsRequest([wanted])).filter_results
        assert result.error_code == 0
        return len(result.matching_acls)
