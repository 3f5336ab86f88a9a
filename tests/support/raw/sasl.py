"""A client that logs in by hand: each step as the test wants it, from an address of its own.

Failures of an address are answered ever later, so tests that fail on purpose take another one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import struct
import time
from typing import Any

from kafka.net.sasl.scram import ScramClient

from moldau.broker.wire.frame import read_response, request_frame
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.broker.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from moldau.broker.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from moldau.broker.wire.schema import Message
from moldau.ops.client.connection import API_OF

# 127.0.0.0/8 is this machine: an address for each client, also in processes that test at once.
_addresses = itertools.count(os.getpid() * 251)


def new_address() -> str:
    number = next(_addresses)
    return f"127.{1 + number // 62500 % 250}.{1 + number // 250 % 250}.{1 + number % 250}"


class LoginFailed(Exception):
    def __init__(self, code: int, text: str | None) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class SaslClient:
    def __init__(self, port: int, timeout: float = 20, source: str | None = None) -> None:
        self.source = source or new_address()
        self.socket = socket.create_connection(
            ("127.0.0.1", port), timeout=timeout, source_address=(self.source, 0)
        )
        self._correlation = 0

    def __enter__(self) -> SaslClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # --- frames ---

    def send_frame(self, body: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(body)) + body)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("closed")
            data += piece
        return data

    def send(self, request: Message, version: int) -> None:
        self._correlation += 1
        api = API_OF[type(request)]
        self.socket.sendall(request_frame(api, version, self._correlation, "sasl", request))

    def receive(self, request: Message, version: int, behind: int = 0) -> Any:
        """The next reply; `behind`: so many requests were sent behind this one."""
        correlation, message = read_response(API_OF[type(request)], version, self.receive_frame())
        assert correlation == self._correlation - behind
        return message

    def call(self, request: Message, version: int) -> Any:
        self.send(request, version)
        return self.receive(request, version)

    def must_be_closed(self) -> None:
        """Nothing more comes."""
        with contextlib.suppress(ConnectionError):
            assert self.socket.recv(1) == b""

    @property
    def is_served(self) -> bool:
        try:
            return self.call(MetadataRequest(topics=[]), 9).cluster_id is not None
        except ConnectionError:
            return False

    # --- logging in ---

    def versions(self) -> None:
        request = ApiVersionsRequest("a-test", "1")
        assert self.call(request, 3).error_code == 0

    def handshake(self, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
        response: SaslHandshakeResponse = self.call(SaslHandshakeRequest(mechanism), version)
        return response

    def token(self, token: bytes, version: int = 2) -> SaslAuthenticateResponse:
        response: SaslAuthenticateResponse = self.call(SaslAuthenticateRequest(token), version)
        return response

    def log_in(
        self, mechanism: str, user: str = "", password: str = "", token: str = ""
    ) -> SaslAuthenticateResponse:
        """Raises LoginFailed."""
        answer = self.handshake(mechanism)
        if answer.error_code:
            raise LoginFailed(answer.error_code, None)
        return self.exchange(mechanism, user, password, token)

    def exchange(
        self, mechanism: str, user: str = "", password: str = "", token: str = ""
    ) -> SaslAuthenticateResponse:
        """What follows the handshake."""
        if mechanism == "PLAIN":
            return self._good(self.token(f"\0{user}\0{password}".encode()))
        if mechanism == "OAUTHBEARER":
            return self._good(self.token(f"n,,\x01auth=Bearer {token}\x01\x01".encode()))
        scram = ScramClient(user, password, mechanism)
        first = self._good(self.token(scram.first_message()))
        scram.process_server_first_message(bytes(first.auth_bytes))
        last = self._good(self.token(scram.final_message()))
        scram.process_server_final_message(bytes(last.auth_bytes))
        return last

    @staticmethod
    def _good(response: SaslAuthenticateResponse) -> SaslAuthenticateResponse:
        if response.error_code:
            raise LoginFailed(response.error_code, response.error_message)
        return response

    def raw_token(self, token: bytes) -> bytes:
        """Send a token without a request around it, as after SaslHandshake v0."""
        self.send_frame(token)
        return self.receive_frame()


def closes_soon(clients: list[SaslClient], within_s: float) -> bool:
    """Whether all of them hear that they are disconnected, without a request of theirs."""
    deadline = time.monotonic() + within_s
    left = {client.socket for client in clients}
    while left and time.monotonic() < deadline:
        readable, _, _ = select.select(list(left), [], [], 0.1)
        for each in readable:
            with contextlib.suppress(ConnectionError):
                assert each.recv(1) == b""
            left.discard(each)
    return not left
