"""Produce (key 0): append batches as they are, reply when they are in the store.

KIP-98: the log checks idempotence and transactions. KIP-890: from v12 on producing to a partition
adds it to the transaction. KIP-467: a refused batch gets a message. KIP-516: topic ids from v13.
Versions 0 to 2 are advertised for old librdkafka, and refused.

This is the hot path: callbacks, no task per request, and no record is decoded unless the topic
needs it (compaction, recompression). details/produce_route.py serves requests for one partition,
which most clients send; details/produce_many.py serves the others, and transactional producers.
"""

from __future__ import annotations

import asyncio

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.handlers.details.authorization import (
    TOPIC,
    TRANSACTIONAL_ID,
    denial,
    is_denied,
    log_denial,
)
from moldau.broker.handlers.details.produce_many import ProduceCall
from moldau.broker.handlers.details.produce_mirrored import append_mirrored
from moldau.broker.handlers.details.produce_route import ALL_REPLICAS, ProduceRoute, replicas_wanted
from moldau.broker.log.writing.validation import UnpacksLarge
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.topics.topics import INTERNAL, Topic
from moldau.broker.wire.messages.produce import NOT_MIRRORED, ProduceRequest
from moldau.broker.wire.schema import NO_UUID

FIRST_VERSION = 3
VALID_ACKS = (-1, 0, 1)
NONE_DENIED: frozenset[int] = frozenset()
WRITE = Operation.WRITE
MAX_REMEMBERED = 1000  # topics that a connection may write


def handle(broker: Broker, request: ProduceRequest, call: Call) -> ProduceRoute | None:
    if request.mirrored_at != NOT_MIRRORED:
        append_mirrored(broker, request, call)
        return None
    topics = [broker.topics.known(data.name, data.topic_id) for data in request.topic_data]
    denied = NONE_DENIED
    if broker.authorizer.is_enabled:
        name = request.transactional_id
        if name is not None and is_denied(broker, call, WRITE, TRANSACTIONAL_ID, name):
            ProduceCall(broker, call, request).refuse_all(denial(TRANSACTIONAL_ID))
            return None
        denied = _denied(broker, request, call, topics)
    # A route serves equal requests without asking the authorizer again, until ACLs change.
    route = None if denied else _single_route(broker, request, call, topics)
    if route is None:
        _start_all(broker, request, call, topics, denied)
    else:
        route.start(call, request.topic_data[0].partition_data[0].records)
    return route


def _denied(
    broker: Broker, request: ProduceRequest, call: Call, topics: list[Topic | None]
) -> frozenset[int]:
    """The positions of topics that the client may not write. A topic id that is unknown here has no
    name to ask the authorizer for."""
    may_write = call.connection.may_write
    for topic in topics:
        if topic is None or topic.name not in may_write:
            break
    else:
        return NONE_DENIED
    allows, identity = broker.authorizer.allows, call.connection.identity
    denied: list[int] = []
    for number, data in enumerate(request.topic_data):
        name = data.name
        if data.topic_id != NO_UUID:
            topic = topics[number]
            if topic is None:
                continue
            name = topic.name
        if not allows(identity, WRITE, TOPIC, name):
            log_denial(broker, call, WRITE, TOPIC, name)
            denied.append(number)
        elif topics[number] is not None and len(may_write) < MAX_REMEMBERED:
            may_write.add(name)
    return frozenset(denied) if denied else NONE_DENIED


def _single_route(
    broker: Broker, request: ProduceRequest, call: Call, topics: list[Topic | None]
) -> ProduceRoute | None:
    """The route of a request with a single batch that wants a response, otherwise None."""
    if len(topics) != 1 or request.acks not in (1, ALL_REPLICAS):
        return None
    topic = topics[0]
    data = request.topic_data[0]
    if topic is None or request.transactional_id is not None or len(data.partition_data) != 1:
        return None
    item = data.partition_data[0]
    if not 0 <= item.index < topic.partitions or call.header.api_version < FIRST_VERSION:
        return None
    if topic.name in INTERNAL:
        return None
    if replicas_wanted(request.acks, topic):
        return None
    log = broker.logs.log_for(topic, item.index)
    return ProduceRoute(broker, call.header, request, topic, log)


def _start_all(
    broker: Broker,
    request: ProduceRequest,
    call: Call,
    topics: list[Topic | None],
    denied: frozenset[int],
) -> None:
    produce = ProduceCall(broker, call, request, denied)
    if call.header.api_version < FIRST_VERSION:
        produce.refuse_all(KafkaError(ErrorCode.UNSUPPORTED_VERSION))
    elif request.acks not in VALID_ACKS:
        text = f"acks={request.acks} is not one of -1, 0 and 1"
        produce.refuse_all(KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, text))
    elif produce.is_large(topics) or None in topics:
        _hold_and_start(broker, produce)
    else:
        try:
            admitted = produce.admit_all(topics, at_once=True)
        except UnpacksLarge:
            _hold_and_start(broker, produce)
        else:
            produce.append_all(topics, admitted)


def _hold_and_start(broker: Broker, produce: ProduceCall) -> None:
    # Later requests of the connection must not overtake it.
    produce.call.connection.hold()
    broker.logs.spawn(_ask_and_start(broker, produce))


async def _ask_and_start(broker: Broker, produce: ProduceCall) -> None:
    """Rare: topics have to be looked up in the store, or a batch is large."""
    request = produce.request
    try:
        # Another worker may just have created them.
        topics = await broker.topics.find_each(
            [(data.name, data.topic_id) for data in request.topic_data]
        )
        if broker.authorizer.is_enabled:
            produce.denied = _denied(broker, request, produce.call, topics)
        async with broker.logs.unpacking.room(produce.unpacked_room(topics)):
            admitted = await asyncio.to_thread(produce.admit_all, topics)
    except Exception as fault:
        produce.refuse_all(fault)
    else:
        produce.append_all(topics, admitted)
    finally:
        produce.call.connection.resume()
