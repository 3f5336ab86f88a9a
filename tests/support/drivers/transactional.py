"""Transactional batches and markers, and a coordinator of a few lines, for tests of logs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from moldau.broker.errors import ErrorCode
from moldau.broker.log.callbacks import Completion, await_callback
from moldau.broker.log.partition import PartitionLog
from moldau.broker.log.writing.append import Marker, Participation
from moldau.broker.log.writing.verification import Verified
from moldau.broker.wire.batch import TRANSACTIONAL
from moldau.broker.wire.records import Record, build_batch
from tests.support.drivers.log_host import WaitedAppend


def transactional_batch(
    producer: int, sequence: int, values: list[bytes], *, epoch: int = 0, plain: bool = False
) -> bytearray:
    records = [Record(at, 1_000, b"key", value) for at, value in enumerate(values)]
    return build_batch(
        records,
        base_offset=0,
        last_offset=len(records) - 1,
        attributes=0 if plain else TRANSACTIONAL,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def records_batch(
    producer: int, sequence: int, pairs: Sequence[tuple[str, str | None]], *, at: int = 1_000
) -> bytearray:
    """A transactional batch of keys and values."""
    records = [
        Record(number, at, key.encode(), None if value is None else value.encode())
        for number, (key, value) in enumerate(pairs)
    ]
    return build_batch(
        records,
        base_offset=0,
        last_offset=len(records) - 1,
        attributes=TRANSACTIONAL,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
    )


def send(
    log: PartitionLog,
    producer: int,
    sequence: int,
    *values: bytes,
    epoch: int = 0,
    adds: bool = False,
) -> WaitedAppend:
    batch = transactional_batch(producer, sequence, list(values or [b"value"]), epoch=epoch)
    append = WaitedAppend(batch, participation=Participation(f"id-{producer}", adds))
    log.append(append)
    return append


async def end(
    log: PartitionLog, producer: int, number: int, *, commit: bool, epoch: int = 0
) -> None:
    marker = Marker(producer, epoch, number, commit)

    def begin(done: Completion) -> None:
        log.write_marker(marker, done)

    await await_callback(begin)


class Participant:
    """A transactional producer of keys and values, through any log; its coordinator says yes."""

    def __init__(self, coordinator: Coordinator, producer: int) -> None:
        self.producer = producer
        self.is_open = False
        self._coordinator = coordinator
        self._number = 0
        self._sequence = 0

    async def write(
        self, log: PartitionLog, *pairs: tuple[str, str | None], at: int = 1_000
    ) -> int:
        """One batch; its base offset."""
        if not self.is_open:
            self.is_open = True
            self._number += 1
            self._coordinator.numbers[self.producer] = self._number
        batch = records_batch(self.producer, self._sequence, pairs, at=at)
        self._sequence += len(pairs)
        append = WaitedAppend(batch, participation=Participation(f"id-{self.producer}", adds=False))
        log.append(append)
        return await append.outcome

    async def end(self, log: PartitionLog, *, commit: bool) -> None:
        self.is_open = False
        await end(log, self.producer, self._number, commit=commit)


class Coordinator:
    """Says which transaction each producer has; answers when it is let go on."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.error = ErrorCode.NONE
        self.is_held = False
        self._held: list[tuple[int, Verified]] = []

    def __call__(self, producer_id: int, producer_epoch: int, done: Verified) -> None:
        if self.is_held:
            self._held.append((producer_id, done))
        else:
            asyncio.get_running_loop().call_soon(self._answer, producer_id, done)

    def _answer(self, producer_id: int, done: Verified) -> None:
        number = self.numbers.get(producer_id, 0)
        error = self.error if self.error or number else ErrorCode.TRANSACTION_ABORTABLE
        done(error, 0 if error else number)

    def go_on(self) -> None:
        self.is_held = False
        held, self._held = self._held, []
        for producer_id, done in held:
            self._answer(producer_id, done)
