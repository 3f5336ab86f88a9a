"""acks=all: an append is acknowledged once enough replicas of the store have it."""

from __future__ import annotations

from broker.errors import ErrorCode, KafkaError, StoreUnavailable
from broker.log.flight import Append
from broker.store.streams import Streams


def acknowledge(streams: Streams, append: Append, base_offset: int, timestamp: int) -> None:
    """Complete an append that is in the log, after WAIT if its topic wants replicas."""
    wanted = append.replicas
    if not wanted:
        append.done(None, base_offset, timestamp)
        return

    def counted(reached: int) -> None:
        error: BaseException | None = None
        if reached < 0:
            error = StoreUnavailable("the store did not say how many replicas have it")
        elif reached < wanted:
            text = f"{reached} of {wanted} replicas of the store have it"
            error = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, text)
        append.done(error, base_offset, timestamp)

    streams.wait_replicas(wanted, append.timeout_ms, counted)
