"""A transaction over the partitions and groups of two workers, and what becomes of its end.

scene = Scene(broker, proxy, V1)          # the broker's store is behind the proxy
scene.write()                             # a transaction with something everywhere
…                                         # whatever happens during EndTxn
scene.check(kind=True)                    # one marker in each partition, all of one kind
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.broker.placement import owner_of
from tests.support.brokers.routed import owned_by
from tests.support.brokers.running import Broker, wait_until
from tests.support.proofs.committed import MarkerSeen, read_transactions
from tests.support.proofs.hammer import worker_ports
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient
from tests.support.raw.group import RawMember
from tests.support.raw.transactions import ClientVersion, RawProducer, describe_transaction
from tests.support.stores.proxy import Link, ProxyThread
from tests.support.stores.redis_server import running_redis

TOPIC, PARTITIONS = "orders", 4  # each worker leads two
COORDINATOR, OTHER = 0, 1
PATIENCE_S = 60.0
NOT_NOW = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


class Patient:
    """A connection that is made again as often as need be."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._client: RawClient | None = None

    def call(self, request: Any, version: int | None = None) -> Any:
        answers = []

        def is_answered() -> bool:
            try:
                answers.append(self.call_once(request, version))
            except OSError:
                return False
            return True

        wait_until(is_answered, PATIENCE_S, f"an answer from port {self._port}")
        return answers[0]

    def call_once(self, request: Any, version: int | None = None) -> Any:
        try:
            if self._client is None:
                self._client = RawClient(self._port)
            return self._client.call(request, version)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class Scene:
    """A producer that survives everything, in transactions over four partitions and two groups."""

    def __init__(self, broker: Broker, proxy: ProxyThread, client: ClientVersion) -> None:
        self.broker, self._proxy = broker, proxy
        ports = worker_ports(broker)
        with RawClient(ports[0]) as raw:
            create_topic(raw, TOPIC, partitions=PARTITIONS)
        self.groups = [owned_by(worker) for worker in (COORDINATOR, OTHER)]
        self.producer = RawProducer(broker, owned_by(COORDINATOR), client, direct=True)
        self.producer.by_worker = [Patient(port) for port in ports]  # type: ignore[misc]
        self.coordinator = self.producer.by_worker[COORDINATOR]
        self.producer.coordinator = self.coordinator
        self._ports = ports
        self.reads_from = OTHER
        self._round = 0
        self._before: list[int] = []
        self.producer.begin()

    def close(self) -> None:
        for client in self.producer.by_worker:
            client.close()

    # --- a transaction ---

    def write(self, through: int | None = None) -> None:
        """Something everywhere; through the leaders, or through that worker."""
        self._round += 1
        self._before = [len(markers) for markers in self.markers()]
        producer = self.producer
        if producer.client.adds:
            until_done(lambda: max(producer.add(TOPIC, *range(PARTITIONS)).values()))
        for partition in range(PARTITIONS):
            value = b"%d" % self._round
            until_done(
                lambda number=partition, value=value: (  # type: ignore[misc]
                    producer.send(TOPIC, value, partition=number, worker=through).error_code
                )
            )
        for group in self.groups:
            if producer.client.adds:
                until_done(lambda group=group: producer.add_offsets(group))  # type: ignore[misc]
            until_done(
                lambda group=group: producer.commit_offset(group, TOPIC, self._round)  # type: ignore[misc]
            )

    def end(self, *, commit: bool) -> None:
        """End the transaction; repeats the request until there is an answer."""
        until_done(lambda: self.producer.end(commit=commit).error_code)

    def markers(self) -> list[list[MarkerSeen]]:
        """The markers of each partition."""
        return [
            read_transactions(self._ports[self.reads_from], TOPIC, number).markers
            for number in range(PARTITIONS)
        ]

    def state(self) -> str:
        found = describe_transaction(self.coordinator, self.producer.transactional_id)
        return str(found.transaction_state) if not found.error_code else ""

    def committed(self, group: str) -> int:
        port = self._ports[owner_of(group, len(self._ports))]
        with RawMember(port, group) as member:
            return member.committed(TOPIC)

    # --- what happens ---

    def link(self, worker: int, pipe: str) -> Link:
        """A worker's connection to the store."""
        name = f"moldau-{worker}-{pipe}"
        found: list[Link] = []

        def is_there() -> bool:
            found[:] = [link for link in self._proxy.links() if link.name == name]
            return bool(found)

        wait_until(is_there, PATIENCE_S, f"{name} is connected")
        return found[-1]

    def do(self, work: Callable[[], None]) -> None:
        done = threading.Event()

        def do() -> None:
            work()
            done.set()

        self._proxy.call(do)
        assert done.wait(PATIENCE_S)

    def kill(self, worker: int) -> None:
        pid = self.broker.pids("worker")[worker]
        os.kill(pid, signal.SIGKILL)
        self.broker.wait_restarted("worker", worker, pid)

    # --- the proof ---

    def check_open(self) -> None:
        """No marker more anywhere, now and a moment later."""
        for _ in range(20):
            assert [len(found) for found in self.markers()] == self._before
            time.sleep(0.05)

    def check(self, kind: bool | None) -> bool:
        """One marker more everywhere, all of one kind, and the offsets have come to the same end.
        `kind`: which; None: either of them, and InitProducerId has been answered since. Says which.
        """
        ended = "Empty" if kind is None else "CompleteCommit" if kind else "CompleteAbort"
        wait_until(lambda: self.state() == ended, PATIENCE_S, f"it is {ended}")
        new = [found[before:] for found, before in zip(self.markers(), self._before, strict=True)]
        assert [len(found) for found in new] == [1] * PARTITIONS, new
        kinds = {found[0].commit for found in new}
        numbers = {found[0].number for found in new}
        assert len(kinds) == 1, new
        assert len(numbers) == 1, new
        commit = kinds.pop()
        assert kind in (None, commit), new
        for group in self.groups:
            committed = self.committed(group)
            assert (committed == self._round) == commit, f"{group}: {committed}, {self._round}"
        return commit


MakeScene = Callable[[ClientVersion], Scene]


def until_done(ask: Callable[[], int]) -> None:
    codes: list[ErrorCode] = []

    def is_done() -> bool:
        codes.append(ErrorCode(ask()))
        assert codes[-1] is ErrorCode.NONE or codes[-1] in NOT_NOW, codes
        return codes[-1] is ErrorCode.NONE

    wait_until(is_done, PATIENCE_S, "it is done")


@contextlib.contextmanager
def scenes(start: Callable[..., Broker], directory: Path) -> Iterator[MakeScene]:
    """`make(client) -> Scene`, each with a broker of its own."""
    with (
        running_redis(directory / "redis") as redis,
        ProxyThread(redis.port, lambda link: None) as proxy,
        contextlib.ExitStack() as stack,
    ):

        def make(client: ClientVersion) -> Scene:
            broker = start(redis=f"redis://127.0.0.1:{proxy.port}", workers=2)
            scene = Scene(broker, proxy, client)
            stack.callback(scene.close)
            return scene

        yield make
