"""WriteTxnMarkers (key 27): end transactions in partitions of this worker (KIP-98).

KIP-1228: v2 says which version of transactions a marker is of. 2 is that of our own coordinators,
on this worker or another: the coordinator epoch is the transaction's number, and a marker that is
there already, or late, is left out. Any other is an administrator's (KIP-664): it ends whatever the
producer has open. `__consumer_offsets` stands for groups, by slot.
"""

from __future__ import annotations

from functools import partial

from moldau.broker.errors import ErrorCode
from moldau.broker.handlers.authorization import (
    CLUSTER_DENIED,
    is_cluster_denied,
    is_cluster_hidden,
)
from moldau.broker.handlers.context import Broker
from moldau.broker.log.writing.markers import ADMINISTRATORS, Marker
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.txn.record import Place
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
    # ALTER is an administrator's, CLUSTER_ACTION that of Kafka's own brokers.
    denied = is_cluster_hidden(broker, call, Operation.ALTER) and is_cluster_denied(
        broker, call, Operation.CLUSTER_ACTION
    )
    refused = CLUSTER_DENIED if denied else ErrorCode.NONE
    if call.is_from_worker and request.history != broker.store.history.token:
        # One of the two has yet to notice that the store lost its tail, and what was in it.
        refused = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    MarkersCall(call).write(broker, request, refused)


class MarkersCall:
    """A request, answered when all of its partitions are: they are written at the same time."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._left = 1  # and one for the walk over the request
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
                    place = Place(topic.name, topic.topic_id, answer.partition_index)
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
