"""The workers of a broker on this machine, for what Kafka's protocol has no request for.

They are asked over their unix sockets, which only the user that runs the broker can open. Of other
brokers nothing is known.
"""

from __future__ import annotations

from moldau.ops.client import ClientError, Cluster, LocalSockets, Node
from moldau.ops.client.private import ask_private
from moldau.ops.local_broker import find_local_broker

TIMEOUT_S = 5.0


class LocalWorkers:
    def __init__(self, cluster: Cluster) -> None:
        self._sockets = cluster.local or _sockets_of(cluster)

    def ask(self, node: Node, key: int, body: bytes) -> bytes | None:
        """A private request to a worker; None: it cannot be asked from here."""
        if self._sockets is None:
            return None
        # By its id alone: where brokers advertise the router's address, that is not a worker's.
        path = self._sockets(Node(max(node.node_id, 0), "", 0))
        return ask_private(path, key, body, TIMEOUT_S)


def _sockets_of(cluster: Cluster) -> LocalSockets | None:
    """Its address was named, and it may still be of this machine; the port alone does not tell."""
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
