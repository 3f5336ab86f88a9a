"""Finding the topic or the log that a request names."""

from __future__ import annotations

from broker.errors import ErrorCode, KafkaError
from broker.handlers.context import Broker
from broker.log.log import Log
from broker.log.topics import INTERNAL, Topic
from broker.wire.schema import NO_UUID


def unknown_topic(topic_id: bytes) -> KafkaError:
    """The error of a request for a topic that does not exist, by name or by id."""
    if topic_id == NO_UUID:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)


def check_writable(topic: Topic, partition: int) -> None:
    """Raises KafkaError unless a client may write to this partition."""
    if not 0 <= partition < topic.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.name in INTERNAL:
        text = f"{topic.name!r} is written by the broker only"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)


async def current_log(broker: Broker, topic_name: str, partition: int) -> Log:
    """The log, up to date; raises KafkaError or a StoreFault."""
    topic = await broker.topics.find(topic_name)
    if topic is None or not 0 <= partition < topic.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    log = broker.logs.log_for(topic, partition)
    await log.current()
    return log
