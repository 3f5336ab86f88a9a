"""AddOffsetsToTxn (key 25): a group's offsets become part of a transaction (KIP-98).

The slot of the group is added, in place of Kafka's partition of `__consumer_offsets`. Clients of
transaction version 2 (KIP-890) leave this to TxnOffsetCommit. v2 and later know PRODUCER_FENCED.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.handlers.details.authorization import (
    GROUP,
    GROUP_DENIED,
    TRANSACTIONAL_ID,
    TRANSACTIONAL_ID_DENIED,
    is_denied,
)
from moldau.broker.placement import slot_of
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.txn.effects import AddAnswer, Answer
from moldau.broker.txn.events import Add
from moldau.broker.txn.record import group_offsets_partition
from moldau.broker.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)


class AddReply:
    """The coordinator calls it with the answer."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def answered(self, answer: Answer) -> None:
        assert isinstance(answer, AddAnswer)
        self._call.reply(AddOffsetsToTxnResponse(error_code=answer.error))


def handle(broker: Broker, request: AddOffsetsToTxnRequest, call: Call) -> None:
    name = request.transactional_id
    if is_denied(broker, call, Operation.WRITE, TRANSACTIONAL_ID, name):
        call.reply(AddOffsetsToTxnResponse(error_code=TRANSACTIONAL_ID_DENIED))
        return
    if is_denied(broker, call, Operation.READ, GROUP, request.group_id):
        call.reply(AddOffsetsToTxnResponse(error_code=GROUP_DENIED))
        return
    event = Add(
        AddReply(call),
        request.producer_id,
        request.producer_epoch,
        (group_offsets_partition(slot_of(request.group_id)),),
        version=call.header.api_version,
    )
    broker.transactions.submit(request.transactional_id, event)
