"""A mirrored partition: how far it is, and why it is not mirrored if it is not."""

from __future__ import annotations

import time

from moldau.ops.client import TopicPartition
from moldau.ops.mirror.plan import Chunk

# Offsets that do not fit are looked at again before a topic is refused: right after the election of
# a leader Kafka may name an end that is too low.
STRIKES = 5


class PartitionMirror:
    """One partition. The thread that copies it changes it; others read."""

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.at: int | None = None  # where the log ends here; None: to be asked
        self.position = 0  # where to fetch: beyond `at` when the source's log begins later
        self.epoch = -1  # the source's leader epoch of the last batch; -1: not known
        self.source_start = 0
        self.source_end: int | None = None  # None: not known yet
        self.target_start = 0
        self.records = 0
        self.bytes = 0
        self.refused: str | None = None
        self.strikes = 0
        self.looked_at = 0.0  # when the source's log start was followed

    def begin(self, at: int, position: int) -> None:
        self.at, self.position = at, position

    def unknown(self) -> None:
        """What was sent last may be in the log or not: ask where it ends."""
        self.at, self.epoch = None, -1

    def appended(self, chunk: Chunk) -> None:
        self.at = self.position = chunk.end
        self.epoch = chunk.epoch
        self.records += chunk.records
        self.bytes += len(chunk.data)
        self.strikes = 0

    def refuse(self, why: str) -> None:
        self.refused = why

    @property
    def lag(self) -> int | None:
        """Offsets that the source has and Moldau has not; None: not known yet."""
        if self.refused is not None or self.at is None or self.source_end is None:
            return None
        return max(self.source_end - max(self.at, self.source_start), 0)

    @property
    def is_level(self) -> bool:
        """Does the log begin and end here where it does at the source, as far as is known?"""
        is_known = self.at is not None and self.source_end is not None
        return is_known and self.at == self.source_end and self.target_start >= self.source_start

    def may_follow_start(self, every_s: float) -> bool:
        """Is it time to raise the log start here, if the source's was raised?"""
        now = time.monotonic()
        if self.source_start <= self.target_start or now - self.looked_at < every_s:
            return False
        self.looked_at = now
        return True
