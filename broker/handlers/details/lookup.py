"""Finding the topic or the log that a request names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, StoreFault
from moldau.broker.log.log import Log
from moldau.broker.store_loss.epochs import NO_EPOCH
from moldau.broker.topics.topics import INTERNAL, NEVER_TOPICS, Topic
from moldau.broker.wire.schema import NO_UUID

NO_LEADER = -1  # the leader of a partition that has none at the moment


def unknown_topic(topic_id: bytes) -> KafkaError:
    """The error of a request for a topic that does not exist, by name or by id."""
    if topic_id == NO_UUID:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)


def nothing_to_write(name: str, topic_id: bytes) -> KafkaError:
    """The error of a request that would write to a topic that does not exist."""
    return _written_by_the_broker(name) if name in NEVER_TOPICS else unknown_topic(topic_id)


def check_writable(topic: Topic, partition: int) -> None:
    """Raises KafkaError unless a client may write to this partition."""
    if not 0 <= partition < topic.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.name in INTERNAL:
        raise _written_by_the_broker(topic.name)


def _written_by_the_broker(name: str) -> KafkaError:
    text = f"Cannot append to internal topic {name}: it is written by the broker only."
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)


def epoch_error(log: Log, current_leader_epoch: int) -> ErrorCode:
    """KIP-320: the error for an epoch that is not the log's.

    Either makes a client refresh its metadata and, after an older one, check its position.
    """
    if current_leader_epoch < log.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH


def check_epoch(log: Log, current_leader_epoch: int) -> None:
    """Raises KafkaError if a client names an epoch that is not the log's."""
    if current_leader_epoch not in (NO_EPOCH, log.leader_epoch):
        text = f"{log!r} is in leader epoch {log.leader_epoch}"
        raise KafkaError(epoch_error(log, current_leader_epoch), text)


# A topic of a request; None if it does not exist; a fault if it could not be looked up.
Found = Topic | StoreFault | None


async def find_topics(broker: Broker, names: Iterable[str]) -> dict[str, Found]:
    """The topics of a request by name, with few commands to the store."""
    wanted = list(dict.fromkeys(names))
    found: Sequence[Found]
    try:
        found = await broker.topics.find_each([(name, NO_UUID) for name in wanted])
    except StoreFault as fault:
        found = [broker.topics.get(name) or fault for name in wanted]
    return dict(zip(wanted, found, strict=True))


def raise_fault(found: Found) -> Topic | None:
    """The topic or None; raises a StoreFault if it could not be looked up."""
    if isinstance(found, StoreFault):
        raise found
    return found


def check_found(found: Found, partition: int) -> Topic:
    """Raises KafkaError or a StoreFault unless the topic has this partition."""
    topic = raise_fault(found)
    if topic is None or not 0 <= partition < topic.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


async def current_log(broker: Broker, found: Found, partition: int) -> Log:
    """The log, brought up to date. Raises KafkaError or a StoreFault."""
    topic = check_found(found, partition)
    log = broker.logs.log_for(topic, partition)
    await log.current()
    return log
