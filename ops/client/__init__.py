"""A small blocking Kafka client on the project's own codec.

The command line, the pipeline and the load test talk to brokers with it: one connection
(`Connection`), or a cluster of them (`Cluster`).
"""

from moldau.ops.client.cluster import (
    BOOTSTRAP_ID,
    EARLIEST,
    GROUP,
    LATEST,
    TRANSACTION,
    Cluster,
    LocalSockets,
    leaders_of,
    nodes_of,
    partitions_of,
)
from moldau.ops.client.connection import (
    API_OF,
    TIMEOUT_S,
    Connection,
    UnsupportedVersion,
    Versions,
    error_name,
)
from moldau.ops.client.errors import (
    CONFIG_NAMES,
    RETRIABLE,
    STALE_LEADER,
    ClientError,
    Denied,
    Unreachable,
    refusal,
)
from moldau.ops.client.names import Address, Node, TopicPartition, parse_address, parse_addresses
from moldau.ops.client.properties import ClientSettings, read_client_settings, security_of
from moldau.ops.client.retry import Backoff
from moldau.ops.client.sasl_tokens import AuthenticationFailed
from moldau.ops.client.security import PLAINTEXT, InvalidSecurity, Security

__all__ = [
    "API_OF",
    "BOOTSTRAP_ID",
    "CONFIG_NAMES",
    "EARLIEST",
    "GROUP",
    "LATEST",
    "PLAINTEXT",
    "RETRIABLE",
    "STALE_LEADER",
    "TIMEOUT_S",
    "TRANSACTION",
    "Address",
    "AuthenticationFailed",
    "Backoff",
    "ClientError",
    "ClientSettings",
    "Cluster",
    "Connection",
    "Denied",
    "InvalidSecurity",
    "LocalSockets",
    "Node",
    "Security",
    "TopicPartition",
    "Unreachable",
    "UnsupportedVersion",
    "Versions",
    "error_name",
    "leaders_of",
    "nodes_of",
    "parse_address",
    "parse_addresses",
    "partitions_of",
    "read_client_settings",
    "refusal",
    "security_of",
]
