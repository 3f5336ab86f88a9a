"""DescribeLogDirs (key 35, KIP-113, KIP-827, KIP-1066): the bytes of each partition in the store.

Every broker reports the partitions that it leads, so the sum over brokers is right. Total and
usable bytes are those of the store, which all brokers share: every broker reports the same.
"""

from __future__ import annotations

import logging

from moldau.broker.broker import Broker
from moldau.broker.errors import MoldauError, StoreFault, StoreRefused, code_for
from moldau.broker.handlers.details.authorization import CLUSTER_DENIED, is_cluster_denied
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.topics.topics import Topic
from moldau.broker.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

logger = logging.getLogger("moldau.server")


async def handle(
    broker: Broker, request: DescribeLogDirsRequest, call: Call
) -> DescribeLogDirsResponse:
    if is_cluster_denied(broker, call, Operation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=CLUSTER_DENIED)
    wanted: list[tuple[Topic, list[int]]] = []
    if request.topics is None:
        wanted = [(topic, list(range(topic.partitions))) for topic in broker.topics.all()]
    for item in request.topics or ():
        found = broker.topics.get(item.topic)
        if found is not None:
            known = [index for index in item.partitions if 0 <= index < found.partitions]
            wanted.append((found, known))
    result = DescribeLogDirsResult(log_dir=broker.store.label)
    try:
        result.total_bytes, result.usable_bytes = await broker.store.capacity()
        for topic, partitions in wanted:
            sizes = await _sizes(broker, topic, partitions)
            if sizes:
                result.topics.append(DescribeLogDirsTopic(topic.name, sizes))
    except StoreFault as fault:
        return DescribeLogDirsResponse(
            results=[DescribeLogDirsResult(code_for(fault), broker.store.label)]
        )
    return DescribeLogDirsResponse(results=[result])


async def _sizes(
    broker: Broker, topic: Topic, partitions: list[int]
) -> list[DescribeLogDirsPartition]:
    sizes = []
    for partition in partitions:
        if broker.leader(topic, partition) != broker.node_id:
            continue
        log = broker.logs.log_for(topic, partition)
        try:
            await log.current()
        except StoreRefused as fault:
            logger.warning("%r is left out of the log directory: %s", log, fault)
            continue  # the store works, so only this log is faulty: report the others
        except StoreFault:
            raise
        except MoldauError:
            continue  # deleted meanwhile
        sizes.append(DescribeLogDirsPartition(partition, await log.size_in_store()))
    return sizes
