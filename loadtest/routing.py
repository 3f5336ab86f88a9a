"""The router benchmark: the same small requests directly to the workers, and through the router.

heartbeat  the pure coordinator path: of a member nobody knows, so the store is not asked
produce    one small batch per request, of one partition
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Callable, Iterator, Sequence

from broker.wire.apis import APIS
from broker.wire.frame import request_frame
from broker.wire.messages.find_coordinator import FindCoordinatorRequest
from broker.wire.messages.heartbeat import HeartbeatRequest
from loadtest.client import Client
from loadtest.producing import Load, leaders, make_batch, produce_frame
from loadtest.replay import Replayer, Totals, run_load
from loadtest.target import Target

FIND_COORDINATOR, HEARTBEAT = APIS[10], APIS[12]
HEARTBEAT_VERSION, FIND_VERSION = 4, 3

Address = tuple[str, int]
Connection = tuple[bytes, Address]  # what is sent again and again, and where


class RouterBench:
    """Requests of one size, each way in turn: direct is the baseline of routed."""

    baselines = {  # noqa: RUF012
        "heartbeat, routed": "heartbeat, direct",
        "produce, routed": "produce, direct",
    }
    roles = ("router", "worker", "store", "client")

    def __init__(self, target: Target, arguments: argparse.Namespace, size: int) -> None:
        self._target = target
        self._arguments = arguments
        self._topic = f"bench-{secrets.token_hex(4)}"
        self._batch = bytes(make_batch(size))
        self.size = size

    def __enter__(self) -> RouterBench:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def bytes_of(self, totals: Totals) -> int:
        return totals.received

    def loads(self) -> Iterator[tuple[str, Load]]:
        router = (self._target.host, self._target.port)
        with Client(*router) as client:
            direct = self._heartbeats(client)
            yield "heartbeat, direct", self._load(direct)
            yield "heartbeat, routed", self._load([(frame, router) for frame, _ in direct])
            client.create_topic(self._topic, self._arguments.partitions)
            try:
                direct = self._produces(client)
                yield "produce, direct", self._load(direct)
                yield "produce, routed", self._load([(frame, router) for frame, _ in direct])
            finally:
                client.delete_topic(self._topic)

    def _heartbeats(self, client: Client) -> list[Connection]:
        """A group for each connection, and the worker that coordinates it."""
        made = []
        for number in range(self._arguments.connections):
            group = f"{self._topic}-{number}"
            found = client.call(FIND_COORDINATOR, FIND_VERSION, FindCoordinatorRequest(group))
            request = HeartbeatRequest(group, 1, f"{group}-{secrets.token_hex(16)}")
            frame = request_frame(HEARTBEAT, HEARTBEAT_VERSION, 1, "bench", request)
            made.append((frame, (found.host, found.port)))
        return made

    def _produces(self, client: Client) -> list[Connection]:
        where = leaders(client, self._topic)
        partitions = [
            number % self._arguments.partitions for number in range(self._arguments.connections)
        ]
        return [
            (produce_frame(self._topic, partition, self._batch), where[partition])
            for partition in partitions
        ]

    def _load(self, connections: Sequence[Connection]) -> Load:
        in_flight = self._arguments.in_flight
        made: list[tuple[Callable[[], Replayer], Address]] = [
            (_replayer(frame, in_flight), address) for frame, address in connections
        ]
        return lambda: run_load(made, self._arguments.seconds)


def _replayer(frame: bytes, in_flight: int) -> Callable[[], Replayer]:
    return lambda: Replayer([frame], in_flight)
