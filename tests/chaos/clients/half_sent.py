"""Clients that begin requests and do not end them."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable

from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import request_frame
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.raw.client import NAMED_PRODUCE, make_batch

MIB = 1 << 20
PRODUCE, DESCRIBE_GROUPS = 0, 15
WAITS = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class HalfSent:
    """Connections that each begin a request of `size` bytes and send at most `most` of it."""

    def __init__(self, connect: Callable[[], socket.socket], size: int, most: int) -> None:
        self._connect, self._size, self._most = connect, size, most
        # Of which any part is a list of strings: routers look at it.
        self._filling = b"\0\2xx" * (MIB // 4)
        self._sent: dict[socket.socket, int] = {}
        self.closed = 0

    def begin(self, number: int, api_key: int = PRODUCE, version: int = 9) -> None:
        count = self._size // 5
        head = struct.pack(">ihhihi", self._size, api_key, version, 1, -1, count)
        for _ in range(number):
            client = self._connect()
            client.setblocking(False)
            client.send(head)
            self._sent[client] = len(head)

    def send(self, most: int = 1 << 62) -> int:
        """Send as much as each connection takes now; returns how many bytes that is."""
        taken = 0
        for client, sent in list(self._sent.items()):
            try:
                new = client.send(self._filling[: min(self._most - sent, most, MIB)])
                taken += new
                self._sent[client] = sent + new
            except WAITS:
                pass
            except OSError:
                self._drop(client)
        return taken

    def send_all(self, while_waiting: Callable[[], object], seconds: float = 30) -> None:
        """Send until nothing more is taken from any of them."""
        end = time.monotonic() + seconds
        quiet = 0
        while quiet < 20 and time.monotonic() < end:
            quiet = 0 if self.send() else quiet + 1
            while_waiting()
            time.sleep(0.02)

    def are_closed(self) -> int:
        """How many the server has closed so far."""
        for client in list(self._sent):
            try:
                if client.recv(1) == b"":
                    self._drop(client)
            except WAITS:
                pass
            except OSError:
                self._drop(client)
        return self.closed

    def _drop(self, client: socket.socket) -> None:
        del self._sent[client]
        client.close()
        self.closed += 1

    def close(self) -> None:
        for client in self._sent:
            client.close()
        self._sent.clear()


def produce_request(topic: str, size: int) -> bytes:
    batch = memoryview(make_batch([(None, os.urandom(size), 1)]))
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(0, batch)])]
    request = ProduceRequest(acks=1, timeout_ms=60_000, topic_data=data)
    return request_frame(APIS[ApiKey.PRODUCE], NAMED_PRODUCE, 1, "honest", request)


def answers(client: socket.socket) -> bool:
    """Whether a whole reply comes; False: the connection was closed."""
    received, size = b"", 4
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while len(received) < size and (piece := client.recv(size - len(received))):
            received += piece
            if len(received) == 4:
                size = 4 + struct.unpack(">i", received)[0]
        return len(received) == size
    return False
