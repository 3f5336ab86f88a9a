"""AddPartitionsToTxn (key 24): partitions become part of a transaction (KIP-98).

v0-3 come from clients: of transaction version 1, as those of version 2 (KIP-890) leave it to
Produce. From v4 on several transactions at once, perhaps only to verify. v5 comes from other
workers, for the batches and offsets that they are sent; in Kafka, v4 does too, and so needs
CLUSTER_ACTION. PRODUCER_FENCED is known from v2 on.
"""

from __future__ import annotations

from moldau.broker.errors import ErrorCode, StoreFault
from moldau.broker.handlers.adding import FIRST_VERSION_WITH_MANY, AddCall, Wanted
from moldau.broker.handlers.authorization import (
    CLUSTER_DENIED,
    TOPIC,
    TRANSACTIONAL_ID,
    TRANSACTIONAL_ID_DENIED,
    is_cluster_denied,
    is_denied,
)
from moldau.broker.handlers.context import Broker
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.topics.topics import INTERNAL
from moldau.broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from moldau.broker.wire.schema import NO_UUID


def handle(broker: Broker, request: AddPartitionsToTxnRequest, call: Call) -> None:
    version = call.header.api_version
    wanted = _wanted(request, version)
    denied: frozenset[str] = frozenset()
    if broker.authorizer.is_enabled and not call.is_from_worker:
        if version >= FIRST_VERSION_WITH_MANY:
            if is_cluster_denied(broker, call, Operation.CLUSTER_ACTION):
                call.reply(AddPartitionsToTxnResponse(error_code=CLUSTER_DENIED))
                return
        else:
            (one,) = wanted
            name = one.transactional_id
            if is_denied(broker, call, Operation.WRITE, TRANSACTIONAL_ID, name):
                AddCall(broker, call, wanted).refuse_all(TRANSACTIONAL_ID_DENIED)
                return
            denied = _denied_topics(broker, call, one)
    adding = AddCall(broker, call, wanted, denied)
    if call.is_from_worker and not broker.transactions.knows(request.history):
        adding.refuse_all(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return
    unknown = {
        topic.name
        for one in wanted
        for topic in one.topics
        if topic.name not in INTERNAL
        and topic.name not in denied
        and broker.topics.get(topic.name) is None
    }
    if call.is_from_worker or not unknown:
        adding.start()
        return
    call.connection.hold()  # nothing that is sent behind it may overtake it
    broker.logs.spawn(_start_later(broker, call, adding, unknown))


def _denied_topics(broker: Broker, call: Call, one: Wanted) -> frozenset[str]:
    return frozenset(
        name
        for name in {topic.name for topic in one.topics}
        if name not in INTERNAL and is_denied(broker, call, Operation.WRITE, TOPIC, name)
    )


async def _start_later(broker: Broker, call: Call, adding: AddCall, names: set[str]) -> None:
    try:
        await broker.topics.find_each([(name, NO_UUID) for name in names])
    except StoreFault:
        adding.refuse_all(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    except Exception:
        call.connection.abort()  # a defect of ours; the client connects again
        raise
    else:
        adding.start()
    call.connection.resume()


def _wanted(request: AddPartitionsToTxnRequest, version: int) -> list[Wanted]:
    if version >= FIRST_VERSION_WITH_MANY:
        return [
            Wanted(
                each.transactional_id,
                each.producer_id,
                each.producer_epoch,
                each.verify_only,
                each.topics,
            )
            for each in request.transactions
        ]
    one = Wanted(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        False,
        request.v3_and_below_topics,
    )
    return [one]
