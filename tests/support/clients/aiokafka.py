"""aiokafka behind the tests' common face: its event loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import aiokafka
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, KafkaTimeoutError, ProducerFenced

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

PATIENCE_S = 60.0
PRODUCER_FENCED = 90

T = TypeVar("T")


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self.run(work)
        except KafkaTimeoutError as error:
            raise GaveUp(str(error)) from error
        except KafkaError as error:
            raise _refused(error) from error

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


def _refused(error: KafkaError) -> Refused:
    if isinstance(error, ProducerFenced):
        return Refused(PRODUCER_FENCED, error)
    assert isinstance(error.errno, int), f"not an answer of the broker: {error!r}"
    return Refused(error.errno, error)


class AiokafkaProducer:
    def __init__(self, loop: _Loop, bootstrap: str, settings: ProducerSettings) -> None:
        chosen = {
            "compression_type": None if settings.codec == "none" else settings.codec,
            "acks": "all" if settings.acks == -1 else settings.acks,
            "enable_idempotence": settings.idempotent,
            "linger_ms": settings.linger_ms,
            "max_batch_size": settings.batch_bytes,
            "max_request_size": settings.max_request_bytes,
            "request_timeout_ms": settings.patience_ms,
            "transactional_id": settings.transactional_id,
            "transaction_timeout_ms": settings.transaction_timeout_ms,
        }
        given = {name: value for name, value in chosen.items() if value is not None}
        self._loop = loop
        self._waiting: list[tuple[str, Record]] = []

        async def start() -> aiokafka.AIOKafkaProducer:
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, **given)
            try:
                await producer.start()
            except KafkaError:
                await producer.stop()
                raise
            return producer

        self._producer = loop.ask(start())

    def send(self, topic: str, record: Record) -> None:
        # One hop to the loop's thread for all of them: see flush.
        self._waiting.append((topic, record))

    def flush(self) -> list[Placed]:
        waiting, self._waiting = self._waiting, []

        async def send_all() -> list[Placed]:
            futures = []
            for topic, record in waiting:
                future = await self._producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=record.partition,
                    timestamp_ms=record.timestamp,
                    headers=record.headers,
                )
                futures.append(future)
            await self._producer.flush()
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            placed = []
            for (_, record), outcome in zip(waiting, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    raise outcome
                # With acks=0 there is no answer, and aiokafka gives None.
                if outcome is None:
                    assert record.partition is not None
                    placed.append(Placed(record.partition, -1))
                else:
                    placed.append(Placed(outcome.partition, outcome.offset))
            return placed

        return self._loop.ask(send_all())

    def begin(self) -> None:
        self._loop.ask(self._producer.begin_transaction())

    def commit(self) -> None:
        self.flush()
        self._loop.ask(self._producer.commit_transaction())

    def abort(self) -> None:
        self._waiting.clear()
        self._loop.ask(self._producer.abort_transaction())

    def send_offsets(self, offsets: Mapping[Place, int], reader: Consumer) -> None:
        assert isinstance(reader, AiokafkaConsumer)
        wanted = {TopicPartition(*place): offset for place, offset in offsets.items()}
        self._loop.ask(self._producer.send_offsets_to_transaction(wanted, reader.group))

    def close(self) -> None:
        self._loop.run(self._producer.stop())


class AiokafkaConsumer:
    def __init__(self, loop: _Loop, bootstrap: str, settings: ConsumerSettings) -> None:
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
        self._loop = loop
        self.group = settings.group

        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, **given)
            await consumer.start()
            return consumer

        self._consumer = loop.run(start())

    def assign(self, starts: Mapping[Place, int]) -> None:
        async def assign() -> None:
            self._consumer.assign([TopicPartition(*place) for place in starts])
            for place, offset in starts.items():
                at = TopicPartition(*place)
                if offset == EARLIEST:
                    await self._consumer.seek_to_beginning(at)
                elif offset == LATEST:
                    await self._consumer.seek_to_end(at)
                else:
                    self._consumer.seek(at, offset)

        self._loop.ask(assign())

    def subscribe(self, topics: Sequence[str]) -> None:
        async def subscribe() -> None:
            self._consumer.subscribe(list(topics))

        self._loop.run(subscribe())

    def committed(self, place: Place) -> int | None:
        found: int | None = self._loop.ask(self._consumer.committed(TopicPartition(*place)))
        return found

    def seek(self, place: Place, offset: int) -> None:
        async def seek() -> None:
            self._consumer.seek(TopicPartition(*place), offset)

        self._loop.run(seek())

    def poll(self, seconds: float) -> list[Received]:
        found = self._loop.ask(self._consumer.getmany(timeout_ms=int(seconds * 1000)))
        return [_received(record) for records in found.values() for record in records]

    def position(self, place: Place) -> int:
        return int(self._loop.ask(self._consumer.position(TopicPartition(*place))))

    def watermarks(self, place: Place) -> tuple[int, int]:
        at = TopicPartition(*place)
        low = self._loop.ask(self._consumer.beginning_offsets([at]))
        high = self._loop.ask(self._consumer.end_offsets([at]))
        return low[at], high[at]

    def offsets_for_times(self, times: Mapping[Place, int]) -> dict[Place, int | None]:
        wanted = {TopicPartition(*place): at for place, at in times.items()}
        found = self._loop.ask(self._consumer.offsets_for_times(wanted))
        return {
            Place(at.topic, at.partition): None if answer is None else answer.offset
            for at, answer in found.items()
        }

    def close(self) -> None:
        self._loop.run(self._consumer.stop())


def _received(record: Any) -> Received:
    return Received(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        timestamp_type=record.timestamp_type,
        key=record.key,
        value=record.value,
        headers=list(record.headers),
    )


class AiokafkaAdmin:
    def __init__(self, loop: _Loop, bootstrap: str) -> None:
        self._loop = loop

        async def start() -> AIOKafkaAdminClient:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            return admin

        self._admin = loop.run(start())

    def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, int]:
        wanted = [
            AioNewTopic(
                topic.name, topic.partitions, topic.replication, topic_configs=topic.configs
            )
            for topic in topics
        ]
        answer = self._loop.run(self._admin.create_topics(wanted, validate_only=validate_only))
        return {name: code for name, code, *_ in answer.topic_errors}

    def delete_topics(self, names: Sequence[str]) -> dict[str, int]:
        answer = self._loop.run(self._admin.delete_topics(list(names)))
        return dict(answer.topic_error_codes)

    def create_partitions(self, topic: str, total: int, *, validate_only: bool = False) -> int:
        wanted = {topic: NewPartitions(total)}
        try:
            self._loop.ask(self._admin.create_partitions(wanted, validate_only=validate_only))
        except Refused as refusal:
            return refusal.code
        return 0

    def topic_names(self) -> set[str]:
        return set(self._loop.run(self._admin.list_topics()))

    def leaders(self, topic: str) -> dict[int, int]:
        (described,) = self._loop.run(self._admin.describe_topics([topic]))
        if described["error_code"]:
            raise Refused(described["error_code"])
        return {item["partition"]: item["leader"] for item in described["partitions"]}

    def cluster(self) -> Cluster:
        described = self._loop.run(self._admin.describe_cluster())
        brokers = {node["node_id"]: (node["host"], node["port"]) for node in described["brokers"]}
        return Cluster(described["cluster_id"], described["controller_id"], brokers)

    def topic_configs(self, topic: str) -> dict[str, Config]:
        return self._configs(ConfigResourceType.TOPIC, topic)

    def broker_configs(self, node: str) -> dict[str, Config]:
        return self._configs(ConfigResourceType.BROKER, node)

    def _configs(self, kind: ConfigResourceType, name: str) -> dict[str, Config]:
        (answer,) = self._loop.run(
            self._admin.describe_configs([ConfigResource(kind, name)], include_synonyms=True)
        )
        ((code, text, _, _, entries),) = answer.resources
        if code:
            raise Refused(code, text)
        return {
            key: Config(value, source, read_only, sensitive, [tuple(other) for other in synonyms])
            for key, value, read_only, source, sensitive, synonyms in entries
        }

    def replace_topic_configs(self, topic: str, configs: Mapping[str, str]) -> int:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))
        (answer,) = self._loop.run(self._admin.alter_configs([resource]))
        return int(answer.resources[0][0])

    def delete_records(self, place: Place, before: int) -> int:
        at = TopicPartition(*place)
        found = self._loop.ask(self._admin.delete_records({at: RecordsToDelete(before)}))
        return int(found[at])

    def close(self) -> None:
        self._loop.run(self._admin.close())


class Aiokafka:
    name = "aiokafka"
    codecs = frozenset(CODECS)
    takes_null_headers = True
    unknown_codes = frozenset({87})
    names_members = False

    def __init__(self) -> None:
        self._loop = _Loop()

    def producer(self, bootstrap: str, settings: ProducerSettings) -> AiokafkaProducer:
        return AiokafkaProducer(self._loop, bootstrap, settings)

    def consumer(self, bootstrap: str, settings: ConsumerSettings) -> AiokafkaConsumer:
        return AiokafkaConsumer(self._loop, bootstrap, settings)

    def admin(self, bootstrap: str) -> AiokafkaAdmin:
        return AiokafkaAdmin(self._loop, bootstrap)

    def close(self) -> None:
        self._loop.close()
