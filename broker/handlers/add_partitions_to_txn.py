"""AddPartitionsToTxn (key 24): partitions become part of a transaction (KIP-98).

v0-3 come from clients: of transaction version 1, as those of version 2 (KIP-890) leave it to
Produce. From v4 on several transactions at once, perhaps only to verify. v5 comes from other
workers, for the batches and offsets that they are sent. PRODUCER_FENCED is known from v2 on.
"""

from __future__ import annotations

from broker.errors import ErrorCode, StoreFault
from broker.handlers.adding import FIRST_VERSION_WITH_MANY, AddCall, Wanted
from broker.handlers.context import Broker
from broker.log.topics import INTERNAL
from broker.server.connection import Call
from broker.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest


def handle(broker: Broker, request: AddPartitionsToTxnRequest, call: Call) -> None:
    wanted = _wanted(request, call.header.api_version)
    adding = AddCall(broker, call, wanted)
    if call.is_from_worker and not broker.transactions.knows(request.history):
        adding.refuse_all(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return
    unknown = {
        topic.name
        for one in wanted
        for topic in one.topics
        if topic.name not in INTERNAL and broker.topics.get(topic.name) is None
    }
    if call.is_from_worker or not unknown:
        adding.start()
        return
    call.connection.hold()  # nothing that is sent behind it may overtake it
    broker.logs.spawn(_start_later(broker, call, adding, unknown))


async def _start_later(broker: Broker, call: Call, adding: AddCall, names: set[str]) -> None:
    try:
        for name in names:
            await broker.topics.find(name)
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
