"""Private requests to the workers of a broker on this machine, over their unix sockets.

Workers answer what Kafka's protocol has no field for. Only the user that runs the broker can open
the sockets: of any other broker every answer is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TypeVar

from moldau.broker.metrics.document import Document, PartitionRow
from moldau.broker.private.api import PrivateApi
from moldau.broker.private.client import ask_blocking
from moldau.broker.private.table import METRICS
from moldau.ops.client import ClientError, Cluster, LocalSockets, Node, TopicPartition
from moldau.ops.local_broker import find_local_broker

TIMEOUT_S = 5.0

Q = TypeVar("Q")
A = TypeVar("A")


class LocalWorkers:
    def __init__(
        self, cluster: Cluster, documents: Mapping[int, Document | None] | None = None
    ) -> None:
        """`documents`: what workers have reported already, by node id; others are asked once."""
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
