"""acks=all: an append is acknowledged once every replica of the store that is online has it."""

from __future__ import annotations

from collections.abc import Callable

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.writing.append import NO_REPLICAS, Append, InFlightEntry
from moldau.broker.store.replication import NEVER, Replication
from moldau.broker.wire.batch import BatchHeader

Acknowledge = Callable[[Append, int, int], None]  # with base offset and timestamp


def too_few(append: Append, online: int) -> KafkaError | None:
    """What to tell the producer of a batch that needs more replicas than there are."""
    if append.replicas <= online:
        return None
    wanted = append.replicas
    text = f"min.insync.replicas wants {wanted} replicas of the store, there are {online}"
    return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, text)


def acknowledge(
    replication: Replication,
    append: Append,
    base_offset: int,
    timestamp: int,
    failed: Callable[[BatchHeader], None] | None = None,
) -> None:
    """Complete an append that is in the log, once replicas have it if it has to wait for them.

    `failed`: called if its client will send it again.
    """
    if append.replicas == NO_REPLICAS or not (replication.replicas or append.replicas):
        append.done(None, base_offset, timestamp)
        return

    def counted(reached: int) -> None:
        fault = shortage(append, reached)
        if fault is not None and failed is not None:
            failed(append.header)
        append.done(fault, base_offset, timestamp)

    replication.when_replicated(counted)


def acknowledge_all(flight: InFlightEntry, wait: Acknowledge, only: int | None = None) -> None:
    """Complete the appends of an entry; `only` those that wait for so many replicas. `wait`: for
    those that need some although there seem to be none."""
    for append in flight.appends:
        if only is None or append.replicas == only:
            timestamp = append.header.max_timestamp
            if append.replicas <= 0:
                append.done(None, append.base_offset, timestamp)
            else:
                wait(append, append.base_offset, timestamp)


def acknowledge_replicated(
    flight: InFlightEntry, reached: int, failed: Callable[[BatchHeader], None]
) -> None:
    """Complete those that waited for replicas: so many have the entry."""
    for append in flight.appends:
        if append.replicas != NO_REPLICAS:
            fault = shortage(append, reached)
            if fault is not None:
                failed(append.header)
            append.done(fault, append.base_offset, append.header.max_timestamp)


def shortage(append: Append, reached: int) -> KafkaError | None:
    """What to tell the producer of an append that so many replicas have."""
    if reached == NEVER:
        # It may be in the log that is left. Clients take the code for that, unlike others.
        text = "the store was exchanged before its replicas had it"
    elif reached < append.replicas:
        text = f"{reached} of {append.replicas} replicas of the store have it"
    else:
        return None
    return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, text)
