"""WriteTxnMarkers (key 27): end transactions in partitions of this worker (KIP-98).

KIP-1228: v2 has the transaction version of a marker. The coordinators of this broker send 2: the
coordinator epoch is the transaction's number, and a marker that is late or already written is
skipped. Any other marker comes from an administrator (KIP-664), and ends whatever transaction the
producer has open. `__consumer_offsets` stands for the slots of groups.
"""

from __future__ import annotations

from functools import partial

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode
from moldau.broker.handlers.details.authorization import (
    CLUSTER_DENIED,
    is_cluster_denied,
    is_cluster_hidden,
)
from moldau.broker.log.writing.append import ADMINISTRATORS, Marker
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.txn.record import TxnPartition
from moldau.broker.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

OURS = 2  # TransactionVersion


def handle(broker: Broker, request: WriteTxnMarkersRequest, call: Call) -> None:
    # Administrators have ALTER, Kafka's own brokers CLUSTER_ACTION.
    denied = is_cluster_hidden(broker, call, Operation.ALTER) and is_cluster_denied(
        broker, call, Operation.CLUSTER_ACTION
    )
    refused = CLUSTER_DENIED if denied else ErrorCode.NONE
    if call.is_from_worker and request.store_id != broker.store.identity.store_id:
        # One of the two has yet to notice that the store lost its tail, and what was in it.
        refused = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    MarkersCall(call).write(broker, request, refused)


class MarkersCall:
    """A request. Its partitions are written at the same time; the reply is sent after the last."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._left = 1  # one more for the loop over the request
        self._results: list[WritableTxnMarkerResult] = []

    def write(self, broker: Broker, request: WriteTxnMarkersRequest, refused: ErrorCode) -> None:
        for wanted in request.markers:
            marker = _marker(wanted)
            result = WritableTxnMarkerResult(wanted.producer_id)
            self._results.append(result)
            for topic in wanted.topics:
                answers = [
                    WritableTxnMarkerPartitionResult(index) for index in topic.partition_indexes
                ]
                result.topics.append(WritableTxnMarkerTopicResult(topic.name, answers))
                for answer in answers:
                    if refused:
                        answer.error_code = refused
                        continue
                    place = TxnPartition(topic.name, topic.topic_id, answer.partition_index)
                    self._left += 1
                    broker.local_markers.write(marker, place, partial(self._written, answer))
        self._done()

    def _written(self, answer: WritableTxnMarkerPartitionResult, error: ErrorCode) -> None:
        answer.error_code = error
        self._done()

    def _done(self) -> None:
        self._left -= 1
        if not self._left:
            self._call.reply(WriteTxnMarkersResponse(self._results))


def _marker(wanted: WritableTxnMarker) -> Marker:
    is_ours = wanted.transaction_version == OURS
    return Marker(
        wanted.producer_id,
        wanted.producer_epoch,
        wanted.coordinator_epoch if is_ours else ADMINISTRATORS,
        wanted.transaction_result,
    )
