"""Finding the log of a partition a request names."""

from __future__ import annotations

from broker.errors import ErrorCode, KafkaError
from broker.handlers.context import Broker
from broker.log.logs import AnyLog


async def current_log(broker: Broker, topic_name: str, partition: int) -> AnyLog:
    """The log, its fold up to date; raises KafkaError or a StoreFault."""
    topic = await broker.topics.find(topic_name)
    if topic is None or not 0 <= partition < topic.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    log = broker.logs.log_for(topic, partition)
    await log.current()
    return log
