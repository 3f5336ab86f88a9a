"""A batch to be appended, and the entry in flight that carries it. Pure: no I/O."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from itertools import count

import msgspec

from moldau.broker.log.state.log_state import Producer, TransactionStep
from moldau.broker.store.streams import Entry
from moldau.broker.wire.batch import BatchHeader, Buffer, set_base_offset
from moldau.broker.wire.control import EndMarker

JOIN_LIMIT = 1 << 14  # smaller entries are kept in one piece

# Entries with a batch that is not idempotent carry a nonce: without one, two workers' identical
# batches could not be distinguished after a lost connection.
_writer = os.urandom(6)
_appends = count()


NO_REPLICAS = -1  # acks=1: no replica is waited for


class Participation(msgspec.Struct, gc=False):
    """How a batch takes part in a transaction."""

    transactional_id: str
    adds: bool  # its partition is added to the transaction, else it must have been before
    number: int = 0  # of the transaction, as the coordinator named it; 0: it was not asked yet
    asked_in: int = 0  # the start of the leader epoch in which it was asked


class Append(ABC):
    """One batch to be appended; `done` is called once, with its offset or with the fault.

    `replicas`: with acks=all, how many replicas of the store must have it at least.
    """

    __slots__ = ("base_offset", "batch", "given_up", "header", "replicas", "timeout_ms")

    participation: Participation | None = None  # of a transactional batch

    def __init__(
        self,
        batch: memoryview | bytearray,
        header: BatchHeader,
        replicas: int = NO_REPLICAS,
        timeout_ms: int = 0,
    ) -> None:
        self.batch = batch
        self.header = header
        self.replicas = replicas
        self.timeout_ms = timeout_ms
        self.base_offset = -1
        self.given_up = False  # its client got a timeout: not sent if it is still queued

    @abstractmethod
    def done(self, error: BaseException | None, base_offset: int, timestamp: int) -> None: ...


class InFlightEntry(msgspec.Struct, eq=False):
    """The entry that is being appended."""

    base: int
    end: int
    epoch: int = 0
    size: int = 0
    max_timestamp: int = -1
    max_timestamp_base: int = -1
    nonce: bytes = b""
    sent_ns: int = 0
    sent_again: bool = False  # the same bytes twice: the store takes one of them
    even_if_full: bool = False  # only markers, which a full store has to take
    parts: list[Buffer] = []
    appends: list[Append] = []
    producers: dict[int, Producer] = {}
    steps: tuple[TransactionStep, ...] = ()

    def begins_transaction(self, producer_id: int) -> None:
        """The batch that is added next opens a transaction."""
        self.steps += (TransactionStep(producer_id, self.end, self.size),)

    def ends_transaction(self, producer_id: int, marker: EndMarker) -> None:
        """The marker that is added next ends a transaction."""
        self.steps += (TransactionStep(producer_id, self.end, self.size, marker),)

    def add(self, append: Append, producer: Producer | None) -> None:
        header = append.header
        set_base_offset(append.batch, self.end, self.epoch)
        append.base_offset = self.end
        if producer is not None:
            self.producers[header.producer_id] = producer
        elif not self.nonce:
            self.nonce = b"%b%x" % (_writer, next(_appends))
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_base = self.end
        self.end += header.last_offset_delta + 1
        self.size += len(append.batch)
        self.parts.append(append.batch)
        self.appends.append(append)

    def seal(self) -> None:
        """Nothing more is added: join the parts if they are small."""
        if len(self.parts) > 1 and self.size <= JOIN_LIMIT:
            self.parts = [b"".join(self.parts)]

    def matches(self, entry: Entry) -> bool:
        """Is this what we sent?"""
        if entry.base != self.base or entry.nonce != self.nonce:
            return False
        return entry.blob == b"".join(self.parts)
