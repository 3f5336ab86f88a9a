"""Fetch (key 1): whole batches from the tail cache or the store; waits for new ones if asked to.

KIP-74: limits per response and partition, the first batch whole whatever its size. KIP-227: fetch
sessions are declined (session id 0). KIP-320: leader epochs are checked. KIP-516: topic ids from
v13. KIP-595: the epoch of the last record fetched is checked. KIP-951: from v16 on a client that is
fenced gets the current epoch. How logs are read and waited for is in delayed_fetch.py.

A connection has one Fetch at a time, as in Kafka: later requests could not be answered before it,
and a client could ask for any amount of memory at once.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, StoreFault, read_code_for
from moldau.broker.handlers.details.authorization import TOPIC, TOPIC_DENIED, log_denial
from moldau.broker.handlers.details.delayed_fetch import READ_COMMITTED, DelayedFetch, PartitionRead
from moldau.broker.handlers.details.lookup import unknown_topic
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.store_loss.epochs import UNDEFINED
from moldau.broker.topics.topics import Topic
from moldau.broker.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from moldau.broker.wire.schema import NO_UUID

FIRST_VERSION_WITH_ENDPOINTS = 16
NO_SESSION_EPOCHS = (-1, 0)
READ = Operation.READ
NONE_ABORTED: list[AbortedTransaction] = []  # never changed


def handle(broker: Broker, request: FetchRequest, call: Call) -> None:
    if request.session_epoch not in NO_SESSION_EPOCHS:
        call.reply(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        return
    if not any(item.partitions for item in request.topics):
        # There is nothing to wait for. The Java client sends this when it is closed.
        call.reply(FetchResponse())
        return
    call.connection.hold()
    topics = [broker.topics.known(item.topic, item.topic_id) for item in request.topics]
    if None in topics:
        broker.logs.spawn(_find_topics_and_start(broker, request, call))
    else:
        _start(broker, request, call, topics)


async def _find_topics_and_start(broker: Broker, request: FetchRequest, call: Call) -> None:
    """Look up unknown topics in the store: another worker may just have created them."""
    unknown: ErrorCode | None = None
    try:
        topics = await broker.topics.find_each(
            [(item.topic, item.topic_id) for item in request.topics]
        )
    except StoreFault as fault:
        # The client must not take them for deleted: the store did not answer.
        unknown = read_code_for(fault)
        topics = [broker.topics.known(item.topic, item.topic_id) for item in request.topics]
    _start(broker, request, call, topics, unknown)


def _start(
    broker: Broker,
    request: FetchRequest,
    call: Call,
    topics: list[Topic | None],
    unknown: ErrorCode | None = None,
) -> None:
    """`unknown`: the error of topics that are not known here, if the store could not be asked."""
    is_checked = broker.authorizer.is_enabled
    reads = []
    for topic, item in zip(topics, request.topics, strict=True):
        if is_checked and _is_denied(broker, call, topic, item):
            reads += [PartitionRead.failed(TOPIC_DENIED) for _ in item.partitions]
        elif topic is None:
            code = unknown or unknown_topic(item.topic_id).code
            reads += [PartitionRead.failed(code) for _ in item.partitions]
        else:
            reads += [_read(broker, topic, partition) for partition in item.partitions]
    DelayedFetch(broker, call, request, reads, _reply).start()


def _is_denied(broker: Broker, call: Call, topic: Topic | None, item: FetchTopic) -> bool:
    if item.topic_id == NO_UUID:
        name = item.topic
    elif topic is None:
        return False  # there is none of this id
    else:
        name = topic.name
    if broker.authorizer.allows(call.connection.identity, READ, TOPIC, name):
        return False
    log_denial(broker, call, READ, TOPIC, name)
    return True


def _read(broker: Broker, topic: Topic, partition: FetchPartition) -> PartitionRead:
    read = PartitionRead(
        partition.fetch_offset,
        max(partition.partition_max_bytes, 0),
        partition.current_leader_epoch,
        partition.last_fetched_epoch,
    )
    if not 0 <= partition.partition < topic.partitions:
        read.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        read.log = broker.logs.log_for(topic, partition.partition)
    return read


def _listed(read: PartitionRead) -> list[AbortedTransaction]:
    if not read.aborted:
        return NONE_ABORTED
    return [AbortedTransaction(each.producer_id, each.first) for each in read.aborted]


def _reply(broker: Broker, call: Call, request: FetchRequest, reads: list[PartitionRead]) -> None:
    committed = request.isolation_level == READ_COMMITTED
    response = FetchResponse()
    following = iter(reads)
    for item in request.topics:
        answers = []
        for partition, read in zip(item.partitions, following, strict=False):
            start, _, high_watermark, last_stable_offset = read.bounds
            answer = PartitionData(
                partition.partition,
                read.error,
                high_watermark,
                last_stable_offset,
                start,
                aborted_transactions=_listed(read) if committed else None,
                records=read.records,
            )
            answers.append(answer)
            if read.diverging is not UNDEFINED:
                answer.diverging_epoch = EpochEndOffset(*read.diverging)
            elif read.error and read.error == ErrorCode.FENCED_LEADER_EPOCH:
                _name_leader(broker, call, response, item, answer, read.epoch)
        response.responses.append(FetchableTopicResponse(item.topic, item.topic_id, answers))
    call.reply(response)
    call.connection.resume_soon()


def _name_leader(
    broker: Broker,
    call: Call,
    response: FetchResponse,
    item: FetchTopic,
    answer: PartitionData,
    epoch: int,
) -> None:
    """KIP-951: the client learns the new epoch without a Metadata request."""
    topic = broker.topics.known(item.topic, item.topic_id)
    if topic is None or call.header.api_version < FIRST_VERSION_WITH_ENDPOINTS:
        return
    leader = broker.leader(topic, answer.partition_index)
    answer.current_leader = LeaderIdAndEpoch(leader, epoch)
    named = {node.node_id for node in response.node_endpoints}
    response.node_endpoints += [
        NodeEndpoint(node.node_id, node.host, node.port)
        for node in broker.endpoints(call.identity.listener)
        if node.node_id == leader and leader not in named
    ]
