"""What an oracle cannot check: (API key, version) and why. Nothing is skipped in silence.

A test holds these tables against what the oracles really know, and demands that every API and
version we serve is known to at least one of them.
"""

from __future__ import annotations

from moldau.broker.wire.apis import NOT_SERVED
from moldau.broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from moldau.broker.wire.messages.list_transactions import ListTransactionsRequest
from moldau.broker.wire.messages.produce import ProduceRequest
from moldau.broker.wire.messages.write_txn_markers import (
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from moldau.broker.wire.schema import Field, Message, fields_of

_NO_CONSUMER_PROTOCOL = "kafka-python does not speak KIP-848"
NOT_IN_KAFKA_PYTHON: dict[tuple[int, int], str] = {
    (key, version): _NO_CONSUMER_PROTOCOL for key in (68, 69) for version in (0, 1)
} | {(key, 0): "it does not push metrics" for key in (71, 72)}
NOT_IN_KAFKA_PYTHON[64, 0] = "it does not unregister brokers"
NOT_IN_KAFKA_PYTHON |= {
    (key, version): "it has no delegation tokens" for key in range(38, 42) for version in (1, 2, 3)
}
NOT_IN_KAFKA_PYTHON |= {
    (api.key, version): "it has no share groups"
    for api in NOT_SERVED
    for version in range(api.lowest, api.highest + 1)
}
_DROPPED = "Kafka 4 dropped it; we understand it only to refuse it"
NOT_IN_KIO: dict[tuple[int, int], str] = {(0, 0): _DROPPED, (0, 1): _DROPPED, (0, 2): _DROPPED}

# Tagged fields of our own, which workers exchange: other codecs skip them.
OURS: dict[tuple[type[Message], str], str] = {
    (AddPartitionsToTxnPartitionResult, "transaction_number"): "joins a batch to its transaction",
    (AddPartitionsToTxnRequest, "store_id"): "an owner that sees another one does not answer",
    (AddPartitionsToTxnTopic, "topic_id"): "which topic of that name",
    (ListTransactionsRequest, "store_id"): "an owner that sees another one does not answer",
    (ProduceRequest, "mirrored_at"): "batches of a mirror keep their offsets",
    (WriteTxnMarkersRequest, "store_id"): "a leader that sees another one does not write",
    (WritableTxnMarkerTopic, "topic_id"): "which topic of that name",
}


def kafkas_fields(message: type[Message], version: int) -> list[Field]:
    """The fields of a version that Kafka has too."""
    return [
        field
        for field in fields_of(message)
        if field.present(version) and (message, field.name) not in OURS
    ]


def without_ours(message: Message) -> Message:
    """The same message, in which the fields of our own are unset."""
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if (type(message), field.name) in OURS:
            setattr(message, field.name, field.default)
        elif field.kind == "struct" and value is not None:
            for item in value if field.is_array else [value]:
                without_ours(item)
    return message
