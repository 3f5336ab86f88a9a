"""A small blocking client on the project's own codec: one connection, and a cluster of them.

What commands that talk to a running broker need and no more: whom to ask (Metadata,
FindCoordinator), asking again once when that was out of date, and refusals in words an operator
can act on. What is asked for, and how it is shown, is the commands' affair.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Self

from broker.errors import ErrorCode
from broker.wire.apis import APIS, Api
from broker.wire.frame import LENGTH, read_response, request_frame
from broker.wire.messages.find_coordinator import FindCoordinatorRequest
from broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from broker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from broker.wire.primitives import MalformedMessage
from broker.wire.schema import Message

LATEST, EARLIEST = -1, -2
TIMEOUT_S = 30.0
MOST_BYTES = 1 << 28  # of a reply

_BY_REQUEST: dict[type[Message], Api] = {api.request: api for api in APIS.values()}
# Topics by name: the highest version is used unless that names them by id only.
_LAST_NAMED = {"OffsetCommit": 9, "OffsetFetch": 9}

_STALE_COORDINATOR = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_STALE_LEADER = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE})

_TRY_AGAIN = "try again in a moment; `moldau status` shows whether a worker is restarting"
_STOP_MEMBERS = "stop its consumers first; `moldau groups describe` shows who they are"
KAFKAS_NAMES = "names and values are those of Kafka's topic configuration, and moldau.*"
_LIST_TOPICS = "`moldau topics list` shows what exists"
_REASONS: dict[int, tuple[str, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ("there is no such topic or partition", _LIST_TOPICS),
    ErrorCode.TOPIC_ALREADY_EXISTS: (
        "it exists already",
        "`moldau topics describe` shows it, --if-not-exists accepts it",
    ),
    ErrorCode.INVALID_CONFIG: (
        "a configuration is refused",
        KAFKAS_NAMES,
    ),
    ErrorCode.INVALID_TOPIC_EXCEPTION: ("not a topic's name", "choose another name"),
    ErrorCode.INVALID_PARTITIONS: (
        "not a number of partitions it can have",
        "choose another number with --partitions",
    ),
    ErrorCode.TOPIC_DELETION_DISABLED: (
        "deleting topics is disabled",
        "set delete.topic.enable=true for the broker",
    ),
    ErrorCode.GROUP_ID_NOT_FOUND: (
        "there is no such group",
        "`moldau groups list` shows what exists",
    ),
    ErrorCode.NON_EMPTY_GROUP: ("it has members", _STOP_MEMBERS),
    ErrorCode.UNKNOWN_MEMBER_ID: ("it has members again", _STOP_MEMBERS),
    ErrorCode.INVALID_GROUP_ID: ("not a group's id", "give a name that is not empty"),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ("its coordinator is loading groups", _TRY_AGAIN),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ("its coordinator is not available", _TRY_AGAIN),
    ErrorCode.NOT_COORDINATOR: ("its coordinator is moving", _TRY_AGAIN),
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ("its leader is moving", _TRY_AGAIN),
    ErrorCode.LEADER_NOT_AVAILABLE: ("it has no leader just now", _TRY_AGAIN),
    ErrorCode.REQUEST_TIMED_OUT: ("the store did not answer in time", _TRY_AGAIN),
    ErrorCode.KAFKA_STORAGE_ERROR: ("the store does not do its work", _TRY_AGAIN),
}


class ClientError(Exception):
    """What was asked for did not happen; the text names the cause and what to do."""


def refusal(
    subject: str, code: int, message: str | None = None, remedy: str | None = None
) -> ClientError:
    """The error for an answer with an error code; `message` is the broker's own, if it gave one.

    `remedy` where more is known of what was asked for than follows from the code.
    """
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = f"error {code}"
    cause, usual = _REASONS.get(code, ("the broker refuses", ""))
    remedy = remedy or usual
    if message and message != name:
        cause = message.rstrip(".")
    return ClientError(f"{subject}: {cause} ({name})" + (f"; {remedy}" if remedy else ""))


class Node(NamedTuple):
    """A broker as Metadata names it."""

    node_id: int
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Connection:
    """One connection; one request at a time. Raises OSError when it fails."""

    def __init__(
        self, host: str, port: int, timeout: float = TIMEOUT_S, client_id: str = "moldau"
    ) -> None:
        self._socket = socket.create_connection((host, port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client_id = client_id
        self._correlation = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def call(self, api: Api, version: int, message: Message) -> Any:
        self._correlation += 1
        frame = request_frame(api, version, self._correlation, self._client_id, message)
        self._socket.sendall(frame)
        (size,) = LENGTH.unpack(self._receive(4))
        if not 0 < size < MOST_BYTES:  # the first letters of another protocol, mostly
            raise MalformedMessage(f"a reply of {size} bytes")
        correlation, response = read_response(api, version, self._receive(size))
        if correlation != self._correlation:
            raise MalformedMessage(f"reply {correlation} to request {self._correlation}")
        return response

    def _receive(self, size: int) -> bytes:
        chunks = bytearray()
        while len(chunks) < size:
            chunk = self._socket.recv(min(size - len(chunks), 1 << 20))
            if not chunk:
                raise ConnectionError("the broker closed the connection")
            chunks += chunk
        return bytes(chunks)


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, the host of an IPv6 address in brackets. Raises ValueError."""
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r}: want HOST:PORT, such as 127.0.0.1:9092")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Cluster:
    """The brokers behind one bootstrap address; a connection to each is made when it is needed."""

    def __init__(self, host: str, port: int, timeout: float = TIMEOUT_S) -> None:
        self.bootstrap = Node(-1, host, port)
        self._timeout = timeout
        self._connections: dict[tuple[str, int], Connection] = {}
        self._coordinators: dict[str, Node] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def call(self, request: Message, node: Node | None = None) -> Any:
        """Ask one broker, the bootstrap one unless named. Raises ClientError."""
        asked = node or self.bootstrap
        api = _BY_REQUEST[type(request)]
        version = _LAST_NAMED.get(api.name, api.highest)
        where = asked.host, asked.port
        try:
            if where not in self._connections:
                self._connections[where] = Connection(*where, self._timeout)
            return self._connections[where].call(api, version, request)
        except (OSError, MalformedMessage) as fault:
            broken = self._connections.pop(where, None)
            if broken is not None:
                broken.close()
            raise self._unreachable(asked, api, fault) from None

    def _unreachable(self, node: Node, api: Api, fault: Exception) -> ClientError:
        if isinstance(fault, MalformedMessage):
            return ClientError(
                f"{node.address} answered {api.name} with something else ({fault}); "
                "is a Moldau broker of this version listening there?"
            )
        cause = (fault.strerror if isinstance(fault, OSError) else None) or str(fault)
        if node == self.bootstrap:
            return ClientError(
                f"no broker answers at {node.address}: {cause}; start one with `moldau serve`, or "
                "say where it is with --bootstrap HOST:PORT or MOLDAU_BOOTSTRAP"
            )
        return ClientError(
            f"broker {node.node_id}, advertised as {node.address}, does not answer: {cause}; "
            "is --advertised-host of `moldau serve` a name this machine can reach?"
        )

    # --- who is there ---

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
        """What Metadata says of topics; those that do not exist are left out."""
        if not names:
            return {}
        found = {}
        for topic in self.metadata(names).topics:
            if topic.error_code == 0:
                found[topic.name or ""] = topic
            elif topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise refusal(f"topic {topic.name}", topic.error_code)
        return found

    def coordinator(self, group_id: str) -> Node:
        if group_id not in self._coordinators:
            request = FindCoordinatorRequest(coordinator_keys=[group_id])
            (found,) = self.call(request).coordinators
            if found.error_code:
                raise refusal(f"group {group_id}", found.error_code, found.error_message)
            self._coordinators[group_id] = Node(found.node_id, found.host, found.port)
        return self._coordinators[group_id]

    def call_coordinator(
        self, group_id: str, request: Message, code_of: Callable[[Any], int]
    ) -> Any:
        """Ask a group's coordinator; once more when it says, by `code_of`, that it is not it."""
        answer = self.call(request, self.coordinator(group_id))
        if code_of(answer) in _STALE_COORDINATOR:
            del self._coordinators[group_id]
            answer = self.call(request, self.coordinator(group_id))
        return answer

    # --- offsets ---

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], isolation: int = 0
    ) -> dict[TopicPartition, int]:
        """Offset by timestamp (or LATEST, EARLIEST); -1: no record is that late.

        Places that do not exist are left out. With isolation 1 (read_committed) LATEST is where
        the first transaction that has not ended begins.
        """
        found, stale = self._ask_leaders(wanted, isolation)
        if stale:
            retried = {place: wanted[place] for place in stale}
            more, stale = self._ask_leaders(retried, isolation)
            found |= more
        for place, code in stale.items():
            raise refusal(f"partition {place}", code)
        return found

    def _ask_leaders(
        self, wanted: Mapping[TopicPartition, int], isolation: int
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, ErrorCode]]:
        """Offsets found, and the places whose leader is another by now."""
        names = sorted({place.topic for place in wanted})
        if not names:
            return {}, {}
        answer = self.metadata(names)
        nodes = {node.node_id: node for node in nodes_of(answer)}
        by_leader: dict[Node, dict[str, list[ListOffsetsPartition]]] = {}
        found: dict[TopicPartition, int] = {}
        stale: dict[TopicPartition, ErrorCode] = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                place = TopicPartition(topic.name or "", partition.partition_index)
                if place not in wanted:
                    continue
                if partition.leader_id not in nodes:
                    stale[place] = ErrorCode.LEADER_NOT_AVAILABLE
                    continue
                topics = by_leader.setdefault(nodes[partition.leader_id], {})
                topics.setdefault(place.topic, []).append(
                    ListOffsetsPartition(place.partition, -1, wanted[place])
                )
        for leader, topics in by_leader.items():
            listed = [ListOffsetsTopic(name, partitions) for name, partitions in topics.items()]
            request = ListOffsetsRequest(-1, isolation, listed, int(self._timeout * 1000))
            for told in self.call(request, leader).topics:
                for one in told.partitions:
                    place = TopicPartition(told.name, one.partition_index)
                    if one.error_code in _STALE_LEADER:
                        stale[place] = ErrorCode(one.error_code)
                    elif one.error_code == 0:
                        found[place] = one.offset
                    elif one.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise refusal(f"partition {place}", one.error_code)
        return found, stale


def nodes_of(answer: MetadataResponse) -> list[Node]:
    found = [Node(broker.node_id, broker.host, broker.port) for broker in answer.brokers]
    return sorted(found)
