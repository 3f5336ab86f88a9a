"""A broker on this machine, asked over its unix sockets: as its operator, without a password.

Whoever can enter the runtime directory runs the broker. Workers are asked at sockets of their own;
requests for any of them, and those to a cluster that advertises its router only, go to a router.
Workers answer questions there for which Kafka's protocol has no field.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from moldau.broker.metrics.document import Document, PartitionRow
from moldau.broker.private.api import PrivateApi
from moldau.broker.private.client import ask_blocking
from moldau.broker.private.table import METRICS
from moldau.ops.client import ClientError, Cluster, LocalSockets, Node, TopicPartition
from moldau.ops.serve.runtime import router_socket, runtime_dir, worker_socket

MAX_ROUTERS = 64
CONNECT_PATIENCE_S = 2.0
TIMEOUT_S = 5.0

Q = TypeVar("Q")
A = TypeVar("A")


def find_local_broker(port: int, routers_at: Collection[int] = ()) -> LocalSockets | None:
    """The sockets of this user's broker with this bootstrap port; None: there is none.

    `routers_at`: the advertised ports of its routers, where they are known to be others.
    """
    directory = runtime_dir(os.environ)
    for index in range(MAX_ROUTERS):
        path = router_socket(directory, port, index)
        if not path.exists():
            return None
        if _accepts(path):
            return _sockets(directory, port, str(path), {port, *routers_at})
    return None


def _sockets(directory: Path, port: int, router: str, routers_at: set[int]) -> LocalSockets:
    def socket_of(node: Node) -> str:
        worker = worker_socket(directory, port, max(node.node_id, 0))
        is_router = node.node_id < 0 or node.port in routers_at
        return router if is_router or not worker.exists() else str(worker)

    return socket_of


def _accepts(path: Path) -> bool:
    """A broker that was killed leaves its sockets behind."""
    with socket.socket(socket.AF_UNIX) as trial:
        trial.settimeout(CONNECT_PATIENCE_S)
        try:
            trial.connect(str(path))
        except OSError:
            return False
    return True


class LocalWorkers:
    """Private requests to the workers of a cluster. Every answer is None unless the cluster is a
    broker on this machine that this user runs."""

    def __init__(
        self, cluster: Cluster, documents: Mapping[int, Document | None] | None = None
    ) -> None:
        """`documents`: known reports of workers, by node id; others are asked once."""
        self._cluster = cluster
        self._documents = dict(documents or {})

    def ask(self, node_id: int, api: PrivateApi[Q, A], request: Q) -> A | None:
        sockets = self._sockets
        if sockets is None:
            return None
        # By its id alone: where brokers advertise the router's address, that is not a worker's.
        path = sockets(Node(max(node_id, 0), "", 0))
        return ask_blocking(path, api, request, TIMEOUT_S)

    def ask_any(self, api: PrivateApi[Q, A], request: Q) -> A | None:
        """The answer of the first worker that gives one."""
        answers = (self.ask(node.node_id, api, request) for node in self._cluster.nodes())
        return next((answer for answer in answers if answer is not None), None)

    def document(self, node_id: int) -> Document | None:
        """The report of a worker: itself, its partitions and its groups."""
        if node_id not in self._documents:
            self._documents[node_id] = self.ask(node_id, METRICS, None)
        return self._documents[node_id]

    def known_rows(self) -> Iterator[PartitionRow]:
        """The partitions in the reports that are here already."""
        for document in self._documents.values():
            yield from () if document is None else document.partitions

    def rows(self, leaders: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionRow]:
        """The rows that leaders, given by their node ids, report; unknown ones are left out."""
        found = {}
        for node_id in set(leaders.values()):
            document = self.document(node_id)
            for row in () if document is None else document.partitions:
                place = TopicPartition(row.topic, row.partition)
                if leaders.get(place) == node_id:
                    found[place] = row
        return found

    @cached_property
    def _sockets(self) -> LocalSockets | None:
        return self._cluster.local or _sockets_of(self._cluster)


def _sockets_of(cluster: Cluster) -> LocalSockets | None:
    """A broker whose address was named may be of this machine; the port alone does not tell."""
    address = cluster.bootstrap.host, cluster.bootstrap.port
    sockets = find_local_broker(cluster.bootstrap.port)
    if sockets is None:
        return None
    try:
        with Cluster([address], local=sockets, timeout=TIMEOUT_S) as own:
            is_it = own.metadata().cluster_id == cluster.metadata().cluster_id
    except ClientError:
        return None
    return sockets if is_it else None
