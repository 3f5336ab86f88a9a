"""A small blocking Kafka client on the project's own codec.

What the command line, the pipeline and the load test talk to a broker with: one connection, and a
cluster of them.
"""

from ops.client.cluster import (
    EARLIEST,
    KAFKAS_NAMES,
    LATEST,
    TIMEOUT_S,
    ClientError,
    Cluster,
    Connection,
    Node,
    TopicPartition,
    nodes_of,
    parse_address,
    refusal,
)

__all__ = [
    "EARLIEST",
    "KAFKAS_NAMES",
    "LATEST",
    "TIMEOUT_S",
    "ClientError",
    "Cluster",
    "Connection",
    "Node",
    "TopicPartition",
    "nodes_of",
    "parse_address",
    "refusal",
]
