"""Acknowledging a batch that is in the log: at once, or when the store's replicas have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.writing.append import NO_REPLICAS, Append
from moldau.broker.store.replication import NEVER
from moldau.broker.wire.batch import BatchHeader


class Replicas(Protocol):
    """The replicas of the store."""

    @property
    def replicas(self) -> int:
        """How many are online."""

    def when_replicated(self, done: Callable[[int], None]) -> None:
        """Call `done` with how many have everything that is written now, or with NEVER."""


def too_few(append: Append, online: int) -> KafkaError | None:
    """The refusal of a batch that needs more replicas than are online."""
    if append.replicas <= online:
        return None
    wanted = append.replicas
    text = f"min.insync.replicas wants {wanted} replicas of the store, there are {online}"
    return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, text)


def acknowledge(
    replication: Replicas,
    appends: Sequence[Append],
    failed: Callable[[BatchHeader], None],
    *,
    at: tuple[int, int] | None = None,
    shown: Callable[[int], None] | None = None,
) -> None:
    """Complete batches that are in the log.

    acks=1 is answered at once, and acks=all if the store has no replicas; otherwise once every
    replica that is online has the batch. `at`: its offset and timestamp, if it was in the log
    before. `failed` is called for each batch that its client will send again, `shown` with how many
    replicas have them.
    """
    online = replication.replicas
    waiting: list[Append] = []
    for append in appends:
        if append.replicas != NO_REPLICAS and (online or append.replicas):
            waiting.append(append)
        elif at is None:
            append.done(None, append.base_offset, append.header.max_timestamp)
        else:
            append.done(None, *at)
    if waiting or shown is not None:
        replication.when_replicated(partial(_replicated, waiting, failed, at, shown))


def _replicated(
    waiting: list[Append],
    failed: Callable[[BatchHeader], None],
    at: tuple[int, int] | None,
    shown: Callable[[int], None] | None,
    reached: int,
) -> None:
    for append in waiting:
        fault = shortage(append, reached)
        if fault is not None:
            failed(append.header)
        append.done(fault, *(at or (append.base_offset, append.header.max_timestamp)))
    if shown is not None:
        shown(reached)


def shortage(append: Append, reached: int) -> KafkaError | None:
    """The error for a batch that `reached` replicas have; None if these are enough."""
    if reached == NEVER:
        # The batch may be in the log that is left. Clients read only this code as "perhaps".
        text = "the store was exchanged before its replicas had it"
    elif reached < append.replicas:
        text = f"{reached} of {append.replicas} replicas of the store have it"
    else:
        return None
    return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, text)
