"""InitProducerId (key 22, KIP-98, KIP-360): ids for idempotent producers.

An idempotent producer that recovers (KIP-360) sends its old id and epoch and gets a new id: the old
one is not fenced, but no other producer uses it.
"""

from __future__ import annotations

from broker.errors import ErrorCode, StoreFault, code_for
from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NO_ID, NO_EPOCH = -1, -1


async def handle(
    broker: Broker, request: InitProducerIdRequest, call: Call
) -> InitProducerIdResponse:
    has_id, has_epoch = request.producer_id != NO_ID, request.producer_epoch != NO_EPOCH
    if request.transactional_id == "" or has_id != has_epoch:
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        # The transaction APIs are not advertised: clients fail before they get here.
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    try:
        return InitProducerIdResponse(producer_id=await broker.take_producer_id(), producer_epoch=0)
    except StoreFault as fault:
        return _refused(code_for(fault))


def _refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=NO_ID, producer_epoch=NO_EPOCH)
