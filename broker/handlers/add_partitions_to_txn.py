"""AddPartitionsToTxn (key 24): partitions become part of a transaction (KIP-98).

Clients of transaction version 1 send v0 to v3; those of version 2 (KIP-890) leave it to Produce.
v4 and later name several transactions, perhaps only to verify them. Other workers send v5 for the
batches and offsets that they receive; in Kafka brokers send v4, which therefore needs
CLUSTER_ACTION. v2 and later know PRODUCER_FENCED.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, StoreFault
from moldau.broker.handlers.details.add_partitions import (
    FIRST_VERSION_WITH_MANY,
    AddCall,
    TransactionRequest,
)
from moldau.broker.handlers.details.authorization import (
    CLUSTER_DENIED,
    TOPIC,
    TRANSACTIONAL_ID,
    TRANSACTIONAL_ID_DENIED,
    is_cluster_denied,
    is_denied,
)
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
    if call.is_from_worker and not broker.transactions.knows(request.store_id):
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
    call.connection.hold()  # no request sent after it may overtake it
    broker.logs.spawn(_start_later(broker, call, adding, unknown))


def _denied_topics(broker: Broker, call: Call, one: TransactionRequest) -> frozenset[str]:
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


def _wanted(request: AddPartitionsToTxnRequest, version: int) -> list[TransactionRequest]:
    if version >= FIRST_VERSION_WITH_MANY:
        return [
            TransactionRequest(
                each.transactional_id,
                each.producer_id,
                each.producer_epoch,
                each.verify_only,
                each.topics,
            )
            for each in request.transactions
        ]
    one = TransactionRequest(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        False,
        request.v3_and_below_topics,
    )
    return [one]
