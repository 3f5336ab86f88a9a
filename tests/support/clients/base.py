"""One face for every Kafka client of the tests: what the compatibility tests ask of a client.

An adapter per client implements these protocols with nothing but the client's public interface
and hands back plain values, so that one set of expectations serves all of them. Whatever a broker
answers with an error becomes `Refused` with Kafka's code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3  # what may stand in place of an offset or a time
CREATE_TIME, LOG_APPEND_TIME = 0, 1
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
# Of a group's consumer: a test that ends its membership has time to see what follows.
LONG_HEARTBEAT_MS = 15_000
Headers = list[tuple[str, bytes | None]]


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int = 0


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What a test sends. Without a partition the client chooses one."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp: int | None = None
    headers: Headers = []


class Placed(NamedTuple):
    """What a producer was answered; offset -1 without an answer (acks=0)."""

    partition: int
    offset: int


class Received(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def place(self) -> Place:
        return Place(self.topic, self.partition)


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """None leaves a setting as the client has it."""

    codec: str | None = None
    acks: int | None = None
    idempotent: bool | None = None
    linger_ms: int | None = None
    batch_bytes: int | None = None
    max_request_bytes: int | None = None
    patience_ms: int | None = None  # how long it looks for a topic
    transactional_id: str | None = None
    transaction_timeout_ms: int | None = None


class ConsumerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """None leaves a setting as the client has it."""

    offset_reset: str = "earliest"  # "latest", "none"
    isolation: str | None = None
    group: str | None = None
    partition_fetch_bytes: int | None = None
    fetch_min_bytes: int | None = None
    fetch_max_wait_ms: int | None = None


class NewTopic(msgspec.Struct, frozen=True):
    name: str
    partitions: int = 1
    configs: dict[str, str] = {}
    replication: int = 1


class Cluster(NamedTuple):
    cluster_id: str | None
    controller: int
    brokers: dict[int, tuple[str, int]]


class Config(NamedTuple):
    """One key as a client's admin describes it; synonyms are (name, value, source)."""

    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    synonyms: list[tuple[str, str | None, int]]


class Refused(Exception):
    """The broker said no."""

    def __init__(self, code: int, text: object = "") -> None:
        super().__init__(f"error {code}: {text}")
        self.code = code


class GaveUp(Exception):
    """The client stopped trying, by its own timeout."""


class Producer(Protocol):
    def send(self, topic: str, record: Record) -> None:
        """Queue it."""

    def flush(self) -> list[Placed]:
        """Where all that was queued went, in that order; Refused for the first that was not."""

    # With a transactional id, which is initialized when the producer is made.

    def begin(self) -> None: ...

    def commit(self) -> None:
        """Whatever was queued goes with it."""

    def abort(self) -> None: ...

    def send_offsets(self, offsets: Mapping[Place, int], reader: Consumer) -> None:
        """Commit, in the transaction, offsets that a consumer of the same client has read."""

    def close(self) -> None: ...


class Consumer(Protocol):
    def assign(self, starts: Mapping[Place, int]) -> None:
        """Read these partitions, from an offset, EARLIEST or LATEST."""

    def subscribe(self, topics: Sequence[str]) -> None:
        """Read them as a member of its group."""

    def committed(self, place: Place) -> int | None:
        """Where its group goes on."""

    def seek(self, place: Place, offset: int) -> None: ...

    def poll(self, seconds: float) -> list[Received]:
        """What came, as soon as something did; empty when nothing did in time."""

    def position(self, place: Place) -> int: ...

    def watermarks(self, place: Place) -> tuple[int, int]:
        """Log start and high watermark, asked of the broker."""

    def offsets_for_times(self, times: Mapping[Place, int]) -> dict[Place, int | None]: ...

    def close(self) -> None: ...


class Admin(Protocol):
    """Codes are Kafka's error codes, 0 for success."""

    def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, int]: ...

    def delete_topics(self, names: Sequence[str]) -> dict[str, int]: ...

    def create_partitions(self, topic: str, total: int, *, validate_only: bool = False) -> int: ...

    def topic_names(self) -> set[str]: ...

    def leaders(self, topic: str) -> dict[int, int]:
        """The leader of each partition; Refused for a topic that is not there."""

    def cluster(self) -> Cluster: ...

    def topic_configs(self, topic: str) -> dict[str, Config]: ...

    def broker_configs(self, node: str) -> dict[str, Config]: ...

    def replace_topic_configs(self, topic: str, configs: Mapping[str, str]) -> int:
        """AlterConfigs: what is not named is no longer set."""

    def delete_records(self, place: Place, before: int) -> int:
        """The new log start; Refused where it is not possible."""

    def close(self) -> None: ...


class IncrementalAdmin(Admin, Protocol):
    """An admin that has IncrementalAlterConfigs and ListOffsets too."""

    def change_topic_configs(self, topic: str, changes: Mapping[str, tuple[str, str]]) -> int:
        """Key to ("set", "delete", "append" or "subtract", value)."""

    def change_broker_configs(self, node: str, changes: Mapping[str, tuple[str, str]]) -> int: ...

    def list_offset(self, place: Place, spec: int) -> tuple[int, int]:
        """Offset and timestamp for EARLIEST, LATEST, MAX_TIMESTAMP or a timestamp."""


class Client(Protocol):
    """A Kafka client library."""

    name: str
    codecs: frozenset[str]  # what it can compress with, as it is installed
    takes_null_headers: bool
    unknown_codes: frozenset[int]  # of Kafka's errors, what it calls an unknown error
    names_members: bool  # with a transaction's offsets (KIP-447), and not only the group

    def producer(self, bootstrap: str, settings: ProducerSettings) -> Producer: ...

    def consumer(self, bootstrap: str, settings: ConsumerSettings) -> Consumer: ...

    def admin(self, bootstrap: str) -> Admin: ...
