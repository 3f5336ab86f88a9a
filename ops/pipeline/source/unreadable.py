"""Batches of a range that cannot be read: the option `onUnreadable` of the source.

A task logs the records that it leaves out in the log of its executor: Spark passes on rows only.
"""

from __future__ import annotations

import logging

from moldau.broker.wire.batch import CorruptBatch
from moldau.ops.client import TopicPartition
from moldau.ops.pipeline.errors import unreadable
from moldau.ops.pipeline.source.decode import FetchedBatch
from moldau.ops.pipeline.source.options import FAIL

logger = logging.getLogger("moldau.pipeline")


class Unreadable:
    """Called with each of them: raises, or logs and counts."""

    def __init__(self, partition: TopicPartition, on_unreadable: str) -> None:
        self._partition = partition
        self._fails = on_unreadable == FAIL
        self.batches = 0
        self.offsets = 0

    def __call__(self, one: FetchedBatch, fault: CorruptBatch) -> None:
        header = one.header
        if self._fails:
            raise unreadable(self._partition, header.base_offset, str(fault)) from fault
        # Of two ranges that share a batch each leaves out its own offsets.
        first, end = max(header.base_offset, one.since), min(header.next_offset, one.until)
        self.batches += 1
        self.offsets += end - first
        logger.warning(
            "partition %s: the batch at offset %d cannot be read: %s; offsets %d to %d left out",
            *(self._partition, header.base_offset, fault, first, end - 1),
        )

    def log_total(self) -> None:
        if self.batches:
            logger.warning(
                "partition %s: %d unreadable batches with %d offsets left out",
                *(self._partition, self.batches, self.offsets),
            )
