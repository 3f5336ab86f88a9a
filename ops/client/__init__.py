"""A small blocking Kafka client on the project's own codec.

The command line, the pipeline and the load test talk to brokers with it: one connection
(`Connection`), or a cluster of them (`Cluster`).
"""

from ops.client.cluster import (
    EARLIEST,
    GROUP,
    LATEST,
    TRANSACTION,
    Cluster,
    leaders_of,
    nodes_of,
    partitions_of,
)
from ops.client.connection import (
    API_OF,
    TIMEOUT_S,
    Connection,
    UnsupportedVersion,
    Versions,
    error_name,
)
from ops.client.errors import CONFIG_NAMES, RETRIABLE, STALE_LEADER, ClientError, refusal
from ops.client.names import Address, Node, TopicPartition, parse_address, parse_addresses
from ops.client.retry import Backoff

__all__ = [
    "API_OF",
    "CONFIG_NAMES",
    "EARLIEST",
    "GROUP",
    "LATEST",
    "RETRIABLE",
    "STALE_LEADER",
    "TIMEOUT_S",
    "TRANSACTION",
    "Address",
    "Backoff",
    "ClientError",
    "Cluster",
    "Connection",
    "Node",
    "TopicPartition",
    "UnsupportedVersion",
    "Versions",
    "error_name",
    "leaders_of",
    "nodes_of",
    "parse_address",
    "parse_addresses",
    "partitions_of",
    "refusal",
]
