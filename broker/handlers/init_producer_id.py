"""InitProducerId (key 22): ids and epochs of producers (KIP-98).

KIP-360: from v3 on a producer that recovers from an error sends its id and epoch. An idempotent
producer gets a new id: the old one is not fenced, but nobody else uses it. A transactional producer
gets the next epoch. v4 and later know PRODUCER_FENCED.
"""

from __future__ import annotations

import asyncio
import contextlib

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, StoreFault, code_for
from moldau.broker.handlers.details.authorization import (
    CLUSTER,
    CLUSTER_DENIED,
    TOPIC,
    TRANSACTIONAL_ID,
    TRANSACTIONAL_ID_DENIED,
    is_cluster_hidden,
    is_denied,
    log_denial,
)
from moldau.broker.security.resources import CLUSTER_NAME, Operation
from moldau.broker.server.call import Call
from moldau.broker.txn.effects import Answer, InitAnswer
from moldau.broker.txn.events import Init
from moldau.broker.txn.record import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from moldau.broker.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)


class InitReply:
    """The coordinator calls it with the answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[InitAnswer] = asyncio.get_running_loop().create_future()

    def answered(self, answer: Answer) -> None:
        assert isinstance(answer, InitAnswer)
        if not self.answer.done():
            self.answer.set_result(answer)


async def handle(
    broker: Broker, request: InitProducerIdRequest, call: Call
) -> InitProducerIdResponse:
    name = request.transactional_id
    if name is None:
        if _may_not_produce(broker, call):
            return _refused(CLUSTER_DENIED)
    elif is_denied(broker, call, Operation.WRITE, TRANSACTIONAL_ID, name):
        return _refused(TRANSACTIONAL_ID_DENIED)
    has_id = request.producer_id != NO_PRODUCER_ID
    if has_id != (request.producer_epoch != NO_PRODUCER_EPOCH):
        return _refused(ErrorCode.INVALID_REQUEST)
    if name is not None:
        return await _transactional(broker, name, request, call)
    try:
        producer_id = await broker.producer_ids.next()
    except StoreFault as fault:
        return _refused(code_for(fault))
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _may_not_produce(broker: Broker, call: Call) -> bool:
    """KIP-679: whoever may write to any topic may do so idempotently."""
    if not is_cluster_hidden(broker, call, Operation.IDEMPOTENT_WRITE):
        return False
    if broker.authorizer.allows_on_any(call.identity, Operation.WRITE, TOPIC):
        return False
    log_denial(broker, call, Operation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME)
    return True


async def _transactional(
    broker: Broker, transactional_id: str, request: InitProducerIdRequest, call: Call
) -> InitProducerIdResponse:
    if not transactional_id:
        return _refused(ErrorCode.INVALID_REQUEST)
    error = broker.transactions.transactions.availability(transactional_id)
    if error:
        return _refused(error)
    with contextlib.suppress(StoreFault):
        await broker.producer_ids.ensure()  # a new id is needed, and the event cannot wait for it
    reply = InitReply()
    event = Init(
        reply,
        request.transaction_timeout_ms,
        request.producer_id,
        request.producer_epoch,
        call.header.api_version,
    )
    broker.transactions.submit(transactional_id, event)
    answer = await reply.answer
    return InitProducerIdResponse(
        error_code=answer.error,
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
    )


def _refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )
