"""Transactional batches that wait until their coordinator has named their transaction.

A transactional batch is appended right away while its producer has a transaction open in the log.
Otherwise the writer hands it over, with every batch of the producer that is queued behind it, and
later ones wait here as well: the batches of a producer stay in order, and other producers are not
held up. The coordinator answers with the number of the transaction, and the batches go back to the
writer's queue.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.log.writing.append import Append, Participation

Verified = Callable[[ErrorCode, int], None]  # called with the number of the transaction


class Verifies(Protocol):
    """Asks coordinators, of this worker and of others."""

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topic: str,
        partition: int,
        *,
        verify_only: bool,
        done: Verified,
    ) -> None: ...


class VerifyingLog(Protocol):
    def append(self, append: Append) -> None: ...
    def verification_failed(self, append: Append, fault: BaseException) -> None: ...


class PendingVerification:
    """The batches of one log that wait."""

    def __init__(
        self, coordinators: Verifies, topic: str, partition: int, log: VerifyingLog
    ) -> None:
        self._coordinators = coordinators
        self._topic = topic
        self._partition = partition
        self._log = log
        self._waiting: dict[int, list[Append]] = {}  # by producer id

    def keeps(self, append: Append) -> bool:
        """Keep a batch that has arrived, if earlier ones of its producer wait here."""
        if append.participation is None or not self._waiting:
            return False
        waiting = self._waiting.get(append.header.producer_id)
        if waiting is None:
            return False
        waiting.append(append)
        return True

    def ask(self, appends: list[Append]) -> None:
        """Batches of one producer, handed back by the log."""
        first = appends[0]
        producer_id, epoch = first.header.producer_id, first.header.producer_epoch
        participation = _participation(first)
        self._waiting[producer_id] = appends
        self._coordinators.verify(
            participation.transactional_id,
            producer_id,
            epoch,
            self._topic,
            self._partition,
            verify_only=not participation.adds,
            done=partial(
                self._verified, participation.asked_in, producer_id, epoch, participation.adds
            ),
        )

    def _verified(
        self,
        asked_in: int,
        producer_id: int,
        epoch: int,
        adds: bool,
        error: ErrorCode,
        number: int,
    ) -> None:
        waiting = self._waiting.pop(producer_id)
        # The answer is for the batches that would have asked the same. Others ask in their turn.
        alike = 0
        for append in waiting:
            if append.header.producer_epoch != epoch or _participation(append).adds != adds:
                break
            alike += 1
        if error is ErrorCode.NONE:
            for append in waiting[:alike]:
                participation = _participation(append)
                participation.number, participation.asked_in = number, asked_in
        else:
            fault = KafkaError(error, f"transaction of producer {producer_id}: {error.name}")
            for append in waiting[:alike]:
                self._log.verification_failed(append, fault)
            waiting = waiting[alike:]
        for append in waiting:
            self._log.append(append)


def _participation(append: Append) -> Participation:
    assert append.participation is not None
    return append.participation
