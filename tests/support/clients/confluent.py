"""confluent-kafka (librdkafka) behind the tests' common face."""

from __future__ import annotations

import contextlib
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import confluent_kafka
import confluent_kafka.admin
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.support.clients.base import (
    CODECS,
    EARLIEST,
    LATEST,
    LONG_HEARTBEAT_MS,
    MAX_TIMESTAMP,
    Cluster,
    Config,
    Consumer,
    ConsumerSettings,
    NewTopic,
    Place,
    Placed,
    ProducerSettings,
    Received,
    Record,
    Refused,
)

# Its annotations miss names it exports and values it takes.
confluent_admin: Any = confluent_kafka.admin

PATIENCE_S = 30.0
# librdkafka's own codes for what a broker answered.
_OWN_CODES = {
    KafkaError._AUTO_OFFSET_RESET: KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._UNKNOWN_TOPIC: KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION: KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._FENCED: KafkaError.PRODUCER_FENCED,
}
T = TypeVar("T")

_STARTS = {EARLIEST: confluent_kafka.OFFSET_BEGINNING, LATEST: confluent_kafka.OFFSET_END}


def _asked(question: Callable[[], T]) -> T:
    try:
        return question()
    except KafkaException as error:
        raise _refused(error.args[0]) from error
    except SystemError as error:  # a fatal error, and a callback that was called because of it
        if not isinstance(error.__cause__, KafkaException):
            raise
        raise _refused(error.__cause__.args[0]) from error


def _refused(error: Any) -> Refused:
    code = error.code()
    return Refused(_OWN_CODES.get(code, code), error.str())


class ConfluentProducer:
    def __init__(self, bootstrap: str, settings: ProducerSettings) -> None:
        chosen = {
            "compression.type": settings.codec,
            "acks": settings.acks,
            "enable.idempotence": settings.idempotent,
            "linger.ms": settings.linger_ms,
            "batch.size": settings.batch_bytes,
            "message.max.bytes": settings.max_request_bytes,
            "topic.metadata.propagation.max.ms": settings.patience_ms,
            "transactional.id": settings.transactional_id,
            "transaction.timeout.ms": settings.transaction_timeout_ms,
        }
        given = {name: value for name, value in chosen.items() if value is not None}
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **given})
        self._outcomes: list[Placed | Refused | None] = []
        if settings.transactional_id is not None:
            try:
                _asked(lambda: self._producer.init_transactions(PATIENCE_S))
            except Refused:
                self._end()
                raise

    def send(self, topic: str, record: Record) -> None:
        at = len(self._outcomes)
        self._outcomes.append(None)

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self._outcomes[at] = _refused(error)
            else:
                offset = message.offset()  # None without an answer (acks=0)
                self._outcomes[at] = Placed(message.partition(), -1 if offset is None else offset)

        given: dict[str, Any] = {}
        if record.partition is not None:
            given["partition"] = record.partition
        if record.timestamp is not None:
            given["timestamp"] = record.timestamp
        if record.headers:
            given["headers"] = record.headers
        while True:
            try:
                self._producer.produce(
                    topic, value=record.value, key=record.key, on_delivery=delivered, **given
                )
            except BufferError:  # librdkafka's queue is full
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def flush(self) -> list[Placed]:
        left = _asked(lambda: self._producer.flush(PATIENCE_S))
        assert left == 0, f"{left} records were not acknowledged"
        outcomes, self._outcomes = self._outcomes, []
        placed = []
        for outcome in outcomes:
            assert outcome is not None
            if isinstance(outcome, Refused):
                raise outcome
            placed.append(outcome)
        return placed

    def begin(self) -> None:
        self._outcomes.clear()  # what a failed transaction left
        _asked(self._producer.begin_transaction)

    def commit(self) -> None:
        _asked(lambda: self._producer.commit_transaction(PATIENCE_S))

    def abort(self) -> None:
        _asked(lambda: self._producer.abort_transaction(PATIENCE_S))

    def send_offsets(self, offsets: Mapping[Place, int], reader: Consumer) -> None:
        assert isinstance(reader, ConfluentConsumer)
        wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        _asked(
            lambda: self._producer.send_offsets_to_transaction(wanted, reader.group(), PATIENCE_S)
        )

    def close(self) -> None:
        if not hasattr(self, "_producer"):
            return  # closed before
        with contextlib.suppress(Refused):  # one that was fenced says so to every call
            _asked(lambda: self._producer.flush(PATIENCE_S))
        self._end()

    def _end(self) -> None:
        """It ends with its last reference. Callbacks of records that were never delivered hold one,
        and so does the traceback of an error: it would go on trying to reach a broker that is gone.
        """
        with contextlib.suppress(Refused):
            _asked(self._producer.purge)
        for _ in range(100):  # a fatal error ends each of these after one callback
            if not len(self._producer):
                break
            with contextlib.suppress(Refused):
                _asked(lambda: self._producer.poll(0.01))
        del self._producer


class ConfluentConsumer:
    def __init__(self, bootstrap: str, settings: ConsumerSettings) -> None:
        reset = settings.offset_reset
        chosen = {
            # Without a group it wants one all the same, and does not use it.
            "group.id": settings.group or f"none-{uuid.uuid4()}",
            "heartbeat.interval.ms": LONG_HEARTBEAT_MS if settings.group else None,
            "enable.auto.commit": False,
            "auto.offset.reset": "error" if reset == "none" else reset,
            "isolation.level": settings.isolation,
            "max.partition.fetch.bytes": settings.partition_fetch_bytes,
            "fetch.min.bytes": settings.fetch_min_bytes,
            "fetch.wait.max.ms": settings.fetch_max_wait_ms,
        }
        given = {name: value for name, value in chosen.items() if value is not None}
        self._consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, **given})

    def assign(self, starts: Mapping[Place, int]) -> None:
        self._consumer.assign(
            [
                TopicPartition(place.topic, place.partition, _STARTS.get(offset, offset))
                for place, offset in starts.items()
            ]
        )

    def subscribe(self, topics: Sequence[str]) -> None:
        self._consumer.subscribe(list(topics))

    def committed(self, place: Place) -> int | None:
        (found,) = self._consumer.committed([TopicPartition(*place)], timeout=PATIENCE_S)
        return None if found.offset == confluent_kafka.OFFSET_INVALID else int(found.offset)

    def group(self) -> Any:
        return self._consumer.consumer_group_metadata()

    def seek(self, place: Place, offset: int) -> None:
        # Only a partition that is being fetched can be sought; assign begins that soon.
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._consumer.seek(TopicPartition(place.topic, place.partition, offset))
            except KafkaException as refusal:
                if refusal.args[0].code() != KafkaError._STATE or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def poll(self, seconds: float) -> list[Received]:
        first = self._consumer.poll(seconds)
        if first is None:
            return []
        messages = [first, *self._consumer.consume(100_000, 0)]
        return [_received(message) for message in messages]

    def position(self, place: Place) -> int:
        (found,) = self._consumer.position([TopicPartition(*place)])
        return int(found.offset)

    def watermarks(self, place: Place) -> tuple[int, int]:
        low, high = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=PATIENCE_S)
        return low, high

    def offsets_for_times(self, times: Mapping[Place, int]) -> dict[Place, int | None]:
        wanted = [TopicPartition(*place, at) for place, at in times.items()]
        found = {}
        for answer in self._consumer.offsets_for_times(wanted, timeout=PATIENCE_S):
            if answer.error is not None:
                raise _refused(answer.error)
            at = None if answer.offset == confluent_kafka.OFFSET_END else answer.offset
            found[Place(answer.topic, answer.partition)] = at
        return found

    def close(self) -> None:
        self._consumer.close()


def _received(message: Any) -> Received:
    if message.error() is not None:
        raise _refused(message.error())
    kind, timestamp = message.timestamp()
    return Received(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp=timestamp,
        timestamp_type=kind - confluent_kafka.TIMESTAMP_CREATE_TIME,
        key=message.key(),
        value=message.value(),
        headers=message.headers() or [],
    )


def _code(future: Future[Any]) -> int:
    try:
        future.result(PATIENCE_S)
    except KafkaException as refusal:
        return _refused(refusal.args[0]).code
    return 0


def _value(future: Future[Any]) -> Any:
    try:
        return future.result(PATIENCE_S)
    except KafkaException as refusal:
        raise _refused(refusal.args[0]) from None


class ConfluentAdmin:
    def __init__(self, bootstrap: str) -> None:
        self._admin = confluent_admin.AdminClient({"bootstrap.servers": bootstrap})

    def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, int]:
        wanted = [
            confluent_admin.NewTopic(
                topic.name, topic.partitions, topic.replication, config=topic.configs
            )
            for topic in topics
        ]
        futures = self._admin.create_topics(wanted, validate_only=validate_only)
        return {name: _code(future) for name, future in futures.items()}

    def delete_topics(self, names: Sequence[str]) -> dict[str, int]:
        futures = self._admin.delete_topics(list(names))
        return {name: _code(future) for name, future in futures.items()}

    def create_partitions(self, topic: str, total: int, *, validate_only: bool = False) -> int:
        wanted = [confluent_admin.NewPartitions(topic, total)]
        futures = self._admin.create_partitions(wanted, validate_only=validate_only)
        return _code(futures[topic])

    def topic_names(self) -> set[str]:
        return set(self._admin.list_topics(timeout=PATIENCE_S).topics)

    def leaders(self, topic: str) -> dict[int, int]:
        futures = self._admin.describe_topics(confluent_kafka.TopicCollection([topic]))
        described = _value(futures[topic])
        return {item.id: item.leader.id for item in described.partitions}

    def cluster(self) -> Cluster:
        described = _value(self._admin.describe_cluster())
        brokers = {node.id: (node.host, node.port) for node in described.nodes}
        return Cluster(described.cluster_id, described.controller.id, brokers)

    def topic_configs(self, topic: str) -> dict[str, Config]:
        return self._configs(confluent_admin.ConfigResource.Type.TOPIC, topic)

    def broker_configs(self, node: str) -> dict[str, Config]:
        return self._configs(confluent_admin.ConfigResource.Type.BROKER, node)

    def _configs(self, kind: Any, name: str) -> dict[str, Config]:
        resource = confluent_admin.ConfigResource(kind, name)
        entries = _value(self._admin.describe_configs([resource])[resource])
        return {
            entry.name: Config(
                entry.value,
                entry.source,
                entry.is_read_only,
                entry.is_sensitive,
                # By name: of several with the same name only the last is left.
                [(other.name, other.value, other.source) for other in entry.synonyms.values()],
            )
            for entry in entries.values()
        }

    def replace_topic_configs(self, topic: str, configs: Mapping[str, str]) -> int:
        resource = confluent_admin.ConfigResource(
            confluent_admin.ConfigResource.Type.TOPIC, topic, set_config=dict(configs)
        )
        with warnings.catch_warnings():  # deprecated, and still served
            warnings.simplefilter("ignore", DeprecationWarning)
            return _code(self._admin.alter_configs([resource])[resource])

    def change_topic_configs(self, topic: str, changes: Mapping[str, tuple[str, str]]) -> int:
        return self._change(confluent_admin.ConfigResource.Type.TOPIC, topic, changes)

    def change_broker_configs(self, node: str, changes: Mapping[str, tuple[str, str]]) -> int:
        return self._change(confluent_admin.ConfigResource.Type.BROKER, node, changes)

    def _change(self, kind: Any, name: str, changes: Mapping[str, tuple[str, str]]) -> int:
        entries = [
            confluent_admin.ConfigEntry(
                key,
                value,
                incremental_operation=confluent_admin.AlterConfigOpType[operation.upper()],
            )
            for key, (operation, value) in changes.items()
        ]
        resource = confluent_admin.ConfigResource(kind, name, incremental_configs=entries)
        return _code(self._admin.incremental_alter_configs([resource])[resource])

    def list_offset(self, place: Place, spec: int) -> tuple[int, int]:
        specs: dict[int, Callable[[], Any]] = {
            EARLIEST: confluent_admin.OffsetSpec.earliest,
            LATEST: confluent_admin.OffsetSpec.latest,
            MAX_TIMESTAMP: confluent_admin.OffsetSpec.max_timestamp,
        }
        wanted = specs[spec]() if spec in specs else confluent_admin.OffsetSpec.for_timestamp(spec)
        at = TopicPartition(*place)
        found = _value(self._admin.list_offsets({at: wanted})[at])
        return found.offset, found.timestamp

    def delete_records(self, place: Place, before: int) -> int:
        at = TopicPartition(*place, before)
        return int(_value(self._admin.delete_records([at])[at]).low_watermark)

    def describe_acls(self) -> Any:
        """Every access rule."""
        everything = confluent_admin.AclBindingFilter(
            confluent_admin.ResourceType.ANY,
            None,
            confluent_admin.ResourcePatternType.ANY,
            None,
            None,
            confluent_admin.AclOperation.ANY,
            confluent_admin.AclPermissionType.ANY,
        )
        return _value(self._admin.describe_acls(everything))

    def topic_id(self, topic: str) -> str:
        futures = self._admin.describe_topics(confluent_kafka.TopicCollection([topic]))
        return str(_value(futures[topic]).topic_id)

    def close(self) -> None:
        self._admin.poll(0)


class Confluent:
    name = "confluent"
    codecs = frozenset(CODECS)
    takes_null_headers = True
    unknown_codes: frozenset[int] = frozenset()
    names_members = True

    def producer(self, bootstrap: str, settings: ProducerSettings) -> ConfluentProducer:
        return ConfluentProducer(bootstrap, settings)

    def consumer(self, bootstrap: str, settings: ConsumerSettings) -> ConfluentConsumer:
        return ConfluentConsumer(bootstrap, settings)

    def admin(self, bootstrap: str) -> ConfluentAdmin:
        return ConfluentAdmin(bootstrap)
