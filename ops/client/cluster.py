"""The brokers behind a bootstrap address: which of them to ask, and asking them.

Leaders and coordinators are looked up when they are needed and remembered; a reply that says they
are out of date is retried once. What is asked, and how it is shown, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Self

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from moldau.broker.wire.primitives import MalformedMessage
from moldau.broker.wire.schema import Message
from moldau.ops.client.connection import API_OF, TIMEOUT_S, Connection
from moldau.ops.client.errors import (
    STALE_COORDINATOR,
    STALE_LEADER,
    ClientError,
    Unreachable,
    refusal,
)
from moldau.ops.client.faults import TlsAlert, explain
from moldau.ops.client.names import Address, Node, TopicPartition
from moldau.ops.client.sasl_tokens import AuthenticationFailed
from moldau.ops.client.security import PLAINTEXT, InvalidSecurity, Security

LATEST, EARLIEST = -1, -2  # timestamps of ListOffsets
GROUP, TRANSACTION = 0, 1  # what a coordinator is asked for: FindCoordinator's key types
_SUBJECTS = {GROUP: "group", TRANSACTION: "transactional id"}
BOOTSTRAP_ID = -1

# Of a broker on this machine: the path of the unix socket to ask this node at.
LocalSockets = Callable[[Node], str]


class Cluster:
    """Connections to brokers, each opened when it is needed. Raises ClientError."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        security: Security = PLAINTEXT,
        local: LocalSockets | None = None,
        timeout: float = TIMEOUT_S,
        client_id: str = "moldau",
        introduction: bytes = b"",
    ) -> None:
        """`introduction`: for whom it speaks over `local` sockets; the operator, if empty."""
        # The first that answers is the one to ask.
        self._bootstraps = [Node(BOOTSTRAP_ID, *address) for address in bootstrap]
        self.bootstrap = self._bootstraps[0]
        self._security = security
        self._local = local
        self._timeout = timeout
        self._client_id = client_id
        self._introduction = introduction
        self._connections: dict[Address, Connection] = {}
        self._leaders: dict[TopicPartition, Node] = {}
        self._coordinators: dict[tuple[int, str], Node] = {}

    @property
    def local(self) -> LocalSockets | None:
        """How a broker of this machine is asked."""
        return self._local

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection, and forget who leads and coordinates what."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._leaders.clear()
        self._coordinators.clear()

    # --- asking ---

    def call(self, request: Message, node: Node | None = None, version: int | None = None) -> Any:
        """Ask one broker, the bootstrap one unless named."""
        connection = self.connection(node)
        asked = node or self.bootstrap
        try:
            return connection.call(request, version)
        except (OSError, MalformedMessage) as fault:
            self._drop(asked)
            raise self._unreachable(asked, fault, API_OF[type(request)].name) from None
        except BaseException:  # interrupted: the next reply on it would be to this request
            self._drop(asked)
            raise

    def connection(self, node: Node | None = None) -> Connection:
        """The connection to a broker, the bootstrap one unless named."""
        if node is not None:
            return self._open(node)
        fault: ClientError | None = None
        for candidate in dict.fromkeys((self.bootstrap, *self._bootstraps)):
            try:
                opened = self._open(candidate)
            except ClientError as error:
                fault = error
            else:
                self.bootstrap = candidate
                return opened
        assert fault is not None
        raise fault

    def _open(self, node: Node) -> Connection:
        address = node.host, node.port
        opened = self._connections.get(address)
        if opened is None:
            try:
                opened = Connection(
                    address if self._local is None else self._local(node),
                    security=self._security,
                    timeout=self._timeout,
                    client_id=self._client_id,
                    introduction=self._introduction,
                )
                self._connections[address] = opened
                opened.negotiate()
            except (OSError, MalformedMessage, InvalidSecurity) as fault:
                self._drop(node)
                raise self._unreachable(node, fault, "ApiVersions") from None
        return opened

    def worded(self, error: ClientError) -> str:
        """An error of the last request, as this cluster's user shall read it."""
        return str(error)

    def _drop(self, node: Node) -> None:
        broken = self._connections.pop((node.host, node.port), None)
        if broken is not None:
            broken.close()

    def _unreachable(self, node: Node, fault: Exception, api: str) -> Unreachable:
        if isinstance(fault, MalformedMessage) and not isinstance(fault, TlsAlert):
            return Unreachable(
                f"{node.address} does not answer {api} as expected ({fault}); "
                "is a Moldau broker of this version listening there?"
            )
        cause, remedy = explain(fault, self._security)
        if isinstance(fault, InvalidSecurity):
            return Unreachable(cause)
        if remedy or isinstance(fault, AuthenticationFailed):  # it is there, but not for us
            return Unreachable("; ".join(filter(None, (f"{node.address}: {cause}", remedy))))
        if node.node_id == BOOTSTRAP_ID:
            return Unreachable(
                f"no broker answers at {node.address}: {cause}; start one with `moldau serve`, or "
                "name its address with --bootstrap HOST:PORT or MOLDAU_BOOTSTRAP"
            )
        return Unreachable(
            f"broker {node.node_id}, advertised as {node.address}, does not answer: {cause}; "
            "is --advertised-host of `moldau serve` a name this machine can reach?"
        )

    # --- brokers, topics, leaders ---

    def metadata(self, topics: Iterable[str] | None = ()) -> MetadataResponse:
        """Brokers, and these topics (None: all). Asking never creates a topic."""
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        answer: MetadataResponse = self.call(
            MetadataRequest(wanted, allow_auto_topic_creation=False)
        )
        return answer

    def nodes(self) -> list[Node]:
        return nodes_of(self.metadata())

    def topics(self, names: Collection[str]) -> dict[str, MetadataResponseTopic]:
        """Metadata of topics; those that do not exist are left out."""
        if not names:
            return {}
        found = {}
        for topic in self.metadata(names).topics:
            if topic.error_code == 0:
                found[topic.name or ""] = topic
            elif topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise refusal(f"topic {topic.name}", topic.error_code)
        return found

    def leader(self, partition: TopicPartition) -> Node:
        """The leader of a partition, as it was when Metadata was last asked."""
        if partition not in self._leaders:
            answer = self.metadata([partition.topic])
            self._leaders |= leaders_of(answer)
            for topic in answer.topics:
                if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    raise refusal(f"topic {partition.topic}", topic.error_code)
            if partition not in partitions_of(answer):
                raise refusal(f"partition {partition}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if partition not in self._leaders:
                raise refusal(f"partition {partition}", ErrorCode.LEADER_NOT_AVAILABLE)
        return self._leaders[partition]

    def forget_leader(self, partition: TopicPartition) -> None:
        """It leads no more: the next `leader` asks again."""
        self._leaders.pop(partition, None)

    # --- coordinators ---

    def coordinator(self, key: str, kind: int = GROUP) -> Node:
        """The coordinator of a group or of a transactional id."""
        if (kind, key) not in self._coordinators:
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            (found,) = self.call(request).coordinators
            if found.error_code:
                subject = f"{_SUBJECTS[kind]} {key}"
                raise refusal(subject, found.error_code, found.error_message)
            self._coordinators[kind, key] = Node(found.node_id, found.host, found.port)
        return self._coordinators[kind, key]

    def call_coordinator(
        self, key: str, request: Message, code_of: Callable[[Any], int], kind: int = GROUP
    ) -> Any:
        """Call the coordinator of `key`; look it up again and retry once if the reply says that it
        has moved. `code_of` reads the error code of a reply."""
        answer = self.call(request, self.coordinator(key, kind))
        if code_of(answer) in STALE_COORDINATOR:
            del self._coordinators[kind, key]
            answer = self.call(request, self.coordinator(key, kind))
        return answer

    # --- offsets ---

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], isolation: int = 0
    ) -> dict[TopicPartition, int]:
        """Offset by timestamp (or LATEST, EARLIEST); -1: no record is that late.

        Partitions that do not exist are left out. With isolation 1 (read_committed) LATEST is the
        start of the first open transaction.
        """
        found, stale = self._ask_leaders(wanted, isolation)
        if stale:
            retried = {partition: wanted[partition] for partition in stale}
            more, stale = self._ask_leaders(retried, isolation)
            found |= more
        for partition, code in stale.items():
            raise refusal(f"partition {partition}", code)
        return found

    def _ask_leaders(
        self, wanted: Mapping[TopicPartition, int], isolation: int
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, ErrorCode]]:
        """Offsets found, and the partitions whose leader has changed."""
        names = sorted({partition.topic for partition in wanted})
        if not names:
            return {}, {}
        answer = self.metadata(names)
        leaders = leaders_of(answer)
        by_leader: dict[Node, dict[str, list[ListOffsetsPartition]]] = {}
        found: dict[TopicPartition, int] = {}
        stale: dict[TopicPartition, ErrorCode] = {}
        for partition in partitions_of(answer):
            if partition not in wanted:
                continue
            if partition not in leaders:
                stale[partition] = ErrorCode.LEADER_NOT_AVAILABLE
                continue
            topics = by_leader.setdefault(leaders[partition], {})
            topics.setdefault(partition.topic, []).append(
                ListOffsetsPartition(partition.partition, -1, wanted[partition])
            )
        for leader, topics in by_leader.items():
            listed = [ListOffsetsTopic(name, partitions) for name, partitions in topics.items()]
            request = ListOffsetsRequest(-1, isolation, listed, int(self._timeout * 1000))
            for topic in self.call(request, leader).topics:
                for one in topic.partitions:
                    partition = TopicPartition(topic.name, one.partition_index)
                    if one.error_code in STALE_LEADER:
                        stale[partition] = ErrorCode(one.error_code)
                    elif one.error_code == 0:
                        found[partition] = one.offset
                    elif one.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise refusal(f"partition {partition}", one.error_code)
        return found, stale


# --- reading Metadata ---


def nodes_of(answer: MetadataResponse) -> list[Node]:
    return sorted(Node(broker.node_id, broker.host, broker.port) for broker in answer.brokers)


def partitions_of(answer: MetadataResponse) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name or "", partition.partition_index)
        for topic in answer.topics
        for partition in topic.partitions
    ]


def leaders_of(answer: MetadataResponse) -> dict[TopicPartition, Node]:
    """Partitions without a leader are left out."""
    nodes = {node.node_id: node for node in nodes_of(answer)}
    return {
        TopicPartition(topic.name or "", partition.partition_index): nodes[partition.leader_id]
        for topic in answer.topics
        for partition in topic.partitions
        if partition.leader_id in nodes
    }
