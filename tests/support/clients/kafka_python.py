"""kafka-python behind the tests' common face."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tests.support.clients.base import (
    CODECS,
    EARLIEST,
    LATEST,
    LONG_HEARTBEAT_MS,
    Cluster,
    Config,
    Consumer,
    ConsumerSettings,
    GaveUp,
    NewTopic,
    Place,
    Placed,
    ProducerSettings,
    Received,
    Record,
    Refused,
)
from tests.support.raw.kafka_python import (
    PROTOCOL,  # first: its import silences what kafka's warns of
)

assert PROTOCOL

import kafka  # noqa: E402
from kafka import TopicPartition  # noqa: E402
from kafka.admin import (  # noqa: E402
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    AlterConfigOp,
    ConfigResource,
    ConfigSourceType,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.codec import has_snappy  # noqa: E402
from kafka.errors import KafkaError, KafkaTimeoutError  # noqa: E402
from kafka.structs import OffsetAndMetadata  # noqa: E402

PATIENCE_S = 30.0
FLUSH_PATIENCE_S = 60.0

T = TypeVar("T")


def _asked(question: Callable[[], T]) -> T:
    try:
        return question()
    except KafkaError as error:
        if isinstance(error, KafkaTimeoutError):
            raise GaveUp(str(error)) from error
        raise _refused(error) from error


def _refused(error: KafkaError) -> Refused:
    # Some errors have the broker's answer at the end of their text only, by the class's name.
    answer = getattr(kafka.errors, str(error).split()[-1], error)
    assert isinstance(answer.errno, int), f"not an answer of the broker: {error!r}"
    return Refused(answer.errno, error)


class KafkaPythonProducer:
    def __init__(self, bootstrap: str, settings: ProducerSettings) -> None:
        codec = None if settings.codec == "none" else settings.codec
        chosen = {
            "compression_type": codec,
            "acks": "all" if settings.acks == -1 else settings.acks,
            "enable_idempotence": settings.idempotent,
            "linger_ms": settings.linger_ms,
            "batch_size": settings.batch_bytes,
            "max_request_size": settings.max_request_bytes,
            "max_block_ms": settings.patience_ms,
            "transactional_id": settings.transactional_id,
            "transaction_timeout_ms": settings.transaction_timeout_ms,
        }
        given = {name: value for name, value in chosen.items() if value is not None}
        self._producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, **given)
        self._futures: list[Any] = []
        if settings.transactional_id is not None:
            try:
                _asked(self._producer.init_transactions)
            except Refused:
                self.close()
                raise

    def send(self, topic: str, record: Record) -> None:
        future = _asked(
            lambda: self._producer.send(
                topic,
                value=record.value,
                key=record.key,
                headers=record.headers,
                partition=record.partition,
                timestamp_ms=record.timestamp,
            )
        )
        self._futures.append(future)

    def flush(self) -> list[Placed]:
        self._producer.flush(FLUSH_PATIENCE_S)
        futures, self._futures = self._futures, []
        placed = []
        for future in futures:
            metadata = _asked(lambda future=future: future.get(PATIENCE_S))  # type: ignore[misc]
            placed.append(Placed(metadata.partition, metadata.offset))
        return placed

    def begin(self) -> None:
        self._futures.clear()  # what a failed transaction left
        _asked(self._producer.begin_transaction)

    def commit(self) -> None:
        _asked(self._producer.commit_transaction)

    def abort(self) -> None:
        _asked(self._producer.abort_transaction)

    def send_offsets(self, offsets: Mapping[Place, int], reader: Consumer) -> None:
        assert isinstance(reader, KafkaPythonConsumer)
        wanted = {
            TopicPartition(*place): OffsetAndMetadata(offset, "", -1)
            for place, offset in offsets.items()
        }
        _asked(lambda: self._producer.send_offsets_to_transaction(wanted, reader.group()))

    def close(self) -> None:
        self._producer.close(timeout=PATIENCE_S)


class KafkaPythonConsumer:
    def __init__(self, bootstrap: str, settings: ConsumerSettings) -> None:
        chosen = {
            "auto_offset_reset": settings.offset_reset,
            "isolation_level": settings.isolation,
            "group_id": settings.group,
            "enable_auto_commit": False,
            "heartbeat_interval_ms": LONG_HEARTBEAT_MS if settings.group else None,
            "session_timeout_ms": 3 * LONG_HEARTBEAT_MS if settings.group else None,
            "max_partition_fetch_bytes": settings.partition_fetch_bytes,
            "fetch_min_bytes": settings.fetch_min_bytes,
            "fetch_max_wait_ms": settings.fetch_max_wait_ms,
        }
        given = {name: value for name, value in chosen.items() if value is not None}
        if (settings.fetch_max_wait_ms or 0) >= 30_000:
            given["request_timeout_ms"] = 2 * (settings.fetch_max_wait_ms or 0)
        self._consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, **given)

    def assign(self, starts: Mapping[Place, int]) -> None:
        self._consumer.assign([TopicPartition(*place) for place in starts])
        for place, offset in starts.items():
            at = TopicPartition(*place)
            if offset == EARLIEST:
                self._consumer.seek_to_beginning(at)
            elif offset == LATEST:
                self._consumer.seek_to_end(at)
            else:
                self._consumer.seek(at, offset)

    def subscribe(self, topics: Sequence[str]) -> None:
        self._consumer.subscribe(list(topics))

    def committed(self, place: Place) -> int | None:
        found: int | None = _asked(lambda: self._consumer.committed(TopicPartition(*place)))
        return found

    def group(self) -> Any:
        return self._consumer.group_metadata()

    def seek(self, place: Place, offset: int) -> None:
        self._consumer.seek(TopicPartition(*place), offset)

    def poll(self, seconds: float) -> list[Received]:
        found = _asked(
            lambda: self._consumer.poll(timeout_ms=int(seconds * 1000), max_records=100_000)
        )
        return [_received(record) for records in found.values() for record in records]

    def position(self, place: Place) -> int:
        return int(self._consumer.position(TopicPartition(*place)))

    def watermarks(self, place: Place) -> tuple[int, int]:
        at = TopicPartition(*place)
        low = _asked(lambda: self._consumer.beginning_offsets([at])[at])
        return low, _asked(lambda: self._consumer.end_offsets([at])[at])

    def offsets_for_times(self, times: Mapping[Place, int]) -> dict[Place, int | None]:
        wanted = {TopicPartition(*place): at for place, at in times.items()}
        found = _asked(lambda: self._consumer.offsets_for_times(wanted))
        return {
            Place(at.topic, at.partition): None if answer is None else answer.offset
            for at, answer in found.items()
        }

    def close(self) -> None:
        self._consumer.close()


def _received(record: Any) -> Received:
    return Received(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        timestamp_type=record.timestamp_type,
        key=record.key,
        value=record.value,
        headers=[(name, value) for name, value in record.headers],
    )


class KafkaPythonAdmin:
    def __init__(self, bootstrap: str) -> None:
        self.client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)

    def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, int]:
        wanted = {
            topic.name: {
                "num_partitions": topic.partitions,
                "replication_factor": topic.replication,
                "configs": topic.configs,
            }
            for topic in topics
        }
        answer = self.client.create_topics(wanted, validate_only=validate_only, raise_errors=False)
        return {item["name"]: item["error_code"] for item in answer["topics"]}

    def delete_topics(self, names: Sequence[str]) -> dict[str, int]:
        answer = self.client.delete_topics(list(names), raise_errors=False)
        return {item["name"]: item["error_code"] for item in answer["topics"]}

    def create_partitions(self, topic: str, total: int, *, validate_only: bool = False) -> int:
        answer = self.client.create_partitions(
            {topic: total}, validate_only=validate_only, raise_errors=False
        )
        return int(answer.results[0].error_code)

    def topic_names(self) -> set[str]:
        return set(self.client.list_topics())

    def leaders(self, topic: str) -> dict[int, int]:
        (described,) = self.client.describe_topics([topic])
        if described["error_code"]:
            raise Refused(described["error_code"])
        return {item["partition_index"]: item["leader_id"] for item in described["partitions"]}

    def cluster(self) -> Cluster:
        described = self.client.describe_cluster()
        brokers = {node["broker_id"]: (node["host"], node["port"]) for node in described["brokers"]}
        return Cluster(described["cluster_id"], described["controller_id"], brokers)

    def topic_configs(self, topic: str) -> dict[str, Config]:
        return self._configs("topic", topic)

    def broker_configs(self, node: str) -> dict[str, Config]:
        return self._configs("broker", node)

    def _configs(self, kind: str, name: str) -> dict[str, Config]:
        described = self.client.describe_configs(
            [ConfigResource(kind, name)], include_synonyms=True, config_filter="all"
        )
        return {
            key: Config(
                entry["value"],
                ConfigSourceType[entry["config_source"]].value,
                entry["read_only"],
                entry["is_sensitive"],
                [
                    (other["name"], other["value"], ConfigSourceType[other["source"]].value)
                    for other in entry["synonyms"]
                ],
            )
            for key, entry in described[kind][name].items()
        }

    def replace_topic_configs(self, topic: str, configs: Mapping[str, str]) -> int:
        # Through alter_configs it would add what is set already: reset_configs does not.
        resource = ConfigResource("topic", topic, {})
        self.client.reset_configs([resource], incremental=False)
        resource = ConfigResource("topic", topic, dict(configs))
        return self._alter("topic", resource, incremental=False)

    def change_topic_configs(self, topic: str, changes: Mapping[str, tuple[str, str]]) -> int:
        return self._change("topic", topic, changes)

    def change_broker_configs(self, node: str, changes: Mapping[str, tuple[str, str]]) -> int:
        return self._change("broker", node, changes)

    def _change(self, kind: str, name: str, changes: Mapping[str, tuple[str, str]]) -> int:
        wanted = {
            key: (AlterConfigOp[operation.upper()], value)
            for key, (operation, value) in changes.items()
        }
        return self._alter(kind, ConfigResource(kind, name, wanted), incremental=True)

    def _alter(self, kind: str, resource: ConfigResource, *, incremental: bool) -> int:
        answer = self.client.alter_configs(
            [resource], raise_on_unknown=False, incremental=incremental
        )[kind][resource.name]
        # "OK", or "[Error 40] InvalidConfigurationError: ..."
        return 0 if answer == "OK" else int(answer.split("]")[0].removeprefix("[Error "))

    def list_offset(self, place: Place, spec: int) -> tuple[int, int]:
        at = TopicPartition(*place)
        found = _asked(lambda: self.client.list_partition_offsets({at: spec}))[at]
        return found.offset, found.timestamp

    def delete_records(self, place: Place, before: int) -> int:
        at = TopicPartition(*place)
        return int(_asked(lambda: self.client.delete_records({at: before}))[at]["low_watermark"])

    def log_dirs(self, topic: str) -> dict[int, dict[int, int]]:
        """Bytes of each partition of a topic, by broker."""
        sizes: dict[int, dict[int, int]] = {}
        for broker in self.client.describe_log_dirs([topic]):
            found = sizes.setdefault(broker["broker"], {})
            for directory in broker["log_dirs"]:
                assert directory["error_code"] == 0
                for item in directory["topics"]:
                    assert item["name"] == topic
                    for partition in item["partitions"]:
                        found[partition["partition_index"]] = partition["partition_size"]
        return sizes

    def topic_partitions(
        self, topics: Sequence[str], limit: int, cursor: Any = None
    ) -> tuple[dict[str, Any], Any]:
        """DescribeTopicPartitions: topics by name, and where the next page begins."""
        page = self.client.describe_topic_partitions(
            list(topics), response_partition_limit=limit, cursor=cursor
        )
        return {topic["name"]: topic for topic in page["topics"]}, page["next_cursor"]

    def describe_acls(self) -> Any:
        """Every access rule."""
        everything = ACLFilter(
            principal=None,
            host=None,
            operation=ACLOperation.ANY,
            permission_type=ACLPermissionType.ANY,
            resource_pattern=ResourcePatternFilter(
                ResourceType.ANY, None, ACLResourcePatternType.ANY
            ),
        )
        return _asked(lambda: self.client.describe_acls(everything))

    def close(self) -> None:
        self.client.close()


class KafkaPython:
    name = "kafka-python"
    codecs = frozenset(name for name in CODECS if name != "snappy" or has_snappy())
    takes_null_headers = False
    unknown_codes: frozenset[int] = frozenset()
    names_members = True

    def producer(self, bootstrap: str, settings: ProducerSettings) -> KafkaPythonProducer:
        return KafkaPythonProducer(bootstrap, settings)

    def consumer(self, bootstrap: str, settings: ConsumerSettings) -> KafkaPythonConsumer:
        return KafkaPythonConsumer(bootstrap, settings)

    def admin(self, bootstrap: str) -> KafkaPythonAdmin:
        return KafkaPythonAdmin(bootstrap)
