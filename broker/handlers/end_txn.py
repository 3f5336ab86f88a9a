"""EndTxn (key 26): commit or abort (KIP-98); answered once the decision is stored.

v2 and later know PRODUCER_FENCED. KIP-890: v5 raises the epoch with every transaction, and returns
it. When epochs are exhausted it needs a new producer id, and waits until there is one.
"""

from __future__ import annotations

import contextlib

from moldau.broker.broker import Broker
from moldau.broker.errors import StoreFault
from moldau.broker.handlers.details.authorization import (
    TRANSACTIONAL_ID,
    TRANSACTIONAL_ID_DENIED,
    is_denied,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.txn.effects import Answer, EndAnswer
from moldau.broker.txn.events import End
from moldau.broker.txn.record import LAST_EPOCH
from moldau.broker.wire.messages.end_txn import EndTxnRequest, EndTxnResponse


class EndReply:
    """The coordinator calls it with the answer."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def answered(self, answer: Answer) -> None:
        assert isinstance(answer, EndAnswer)
        self._call.reply(
            EndTxnResponse(
                error_code=answer.error,
                producer_id=answer.producer_id,
                producer_epoch=answer.producer_epoch,
            )
        )


def handle(broker: Broker, request: EndTxnRequest, call: Call) -> None:
    name = request.transactional_id
    if is_denied(broker, call, Operation.WRITE, TRANSACTIONAL_ID, name):
        call.reply(EndTxnResponse(error_code=TRANSACTIONAL_ID_DENIED))
        return
    if request.producer_epoch >= LAST_EPOCH and not broker.producer_ids.is_at_hand:
        broker.logs.spawn(_end_later(broker, request, call))
    else:
        _end(broker, request, call)


async def _end_later(broker: Broker, request: EndTxnRequest, call: Call) -> None:
    with contextlib.suppress(StoreFault):
        await broker.producer_ids.ensure()
    _end(broker, request, call)


def _end(broker: Broker, request: EndTxnRequest, call: Call) -> None:
    event = End(
        EndReply(call),
        request.producer_id,
        request.producer_epoch,
        request.committed,
        call.header.api_version,
    )
    broker.transactions.submit(request.transactional_id, event)
