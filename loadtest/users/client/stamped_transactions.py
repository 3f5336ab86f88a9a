"""A transactional producer of stamped records, as clients before Kafka 4.0 are: partitions are
added before they are written to.

Every request that fails is sent again, as clients do, until it is answered. After an error that is
final the producer continues under a new name (see stamped.py) and a new epoch, so that it does not
matter whether its last transaction was committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.batch import TRANSACTIONAL
from moldau.broker.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from moldau.broker.wire.messages.end_txn import EndTxnRequest
from moldau.broker.wire.messages.fetch import PartitionData
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.broker.wire.schema import Message
from moldau.loadtest.users.client.committed import ABORTED
from moldau.loadtest.users.client.connection import RequestRefused, UserConnection, top_level_error
from moldau.loadtest.users.client.schedule import due_us
from moldau.loadtest.users.client.session import (
    REQUEST_ERRORS,
    RETRIABLE,
    RETRY_S,
    Session,
    records_of,
)
from moldau.loadtest.users.client.stamped import ProducerSequence, new_name, stamp_at, stamped_batch
from moldau.loadtest.users.client.stamped_producer import (
    PRODUCE_TIMEOUT_MS,
    READ_BACK_BYTES,
    Acknowledged,
    ProducerSettings,
    produce_error,
)
from moldau.ops.client import TRANSACTION

TRANSACTION_TIMEOUT_MS = 60_000
READ_COMMITTED = 1
ENDING_S = 0.02  # between attempts while the transaction before is still ending
STABLE_S = 10.0  # for other producers' transactions to end
# Not a failure: the transaction before is still ending; a batch was appended by an attempt before.
EXPECTED = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)


def _added_error(answer: Any) -> int:
    codes = [
        int(result.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    ]
    refused = [code for code in codes if code and code != ErrorCode.OPERATION_NOT_ATTEMPTED]
    return next(iter(refused or codes))


class StampedTransactions:
    """Raises REQUEST_ERRORS."""

    def __init__(self, session: Session, settings: ProducerSettings, transactional_id: str) -> None:
        self._session, self._settings, self._id = session, settings, transactional_id
        self._start_over()
        self.committed: dict[int, Acknowledged] = {}

    def _start_over(self) -> None:
        self._name = new_name()
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[int, int] = {}  # of a partition's next batch
        self._next: dict[int, int] = {}  # number of a partition's next committed record

    # --- a transaction ---

    def transact(self, partitions: Collection[int], due: float, *, commit: bool) -> list[str]:
        """A batch to each partition, and the end; returns violations about assigned offsets."""
        try:
            if self._producer_id < 0:
                self.init()
            self._add(partitions, due)
            bases = {
                partition: self._produce(partition, due, commit=commit) for partition in partitions
            }
            self._end(commit=commit)
        except REQUEST_ERRORS:
            self._start_over()
            raise
        return self._note_committed(bases) if commit else []

    def init(self) -> None:
        """Also ends a transaction of this id that is open."""
        request = InitProducerIdRequest(self._id, TRANSACTION_TIMEOUT_MS)
        answer = self._call(self._coordinator, request, top_level_error)
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    def _add(self, partitions: Collection[int], due: float) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(self._settings.topic, list(partitions))],
        )
        self._call(self._coordinator, request, _added_error, due)

    def _produce(self, partition: int, due: float, *, commit: bool) -> int:
        """The batch's base offset; -1: not known, an attempt before had appended it."""
        settings = self._settings
        first = self._sequences.get(partition, 0)
        batch = stamped_batch(
            self._name if commit else ABORTED,
            self._next.get(partition, 0),
            settings.records,
            settings.record_bytes,
            due_us(due),
            settings.codec,
            ProducerSequence(self._producer_id, self._epoch, first),
            TRANSACTIONAL,
        )
        data = [PartitionProduceData(partition, batch)]
        topics = [TopicProduceData(settings.topic, partition_data=data)]
        request = ProduceRequest(self._id, -1, PRODUCE_TIMEOUT_MS, topics)

        def leader() -> UserConnection:
            return self._session.leader(settings.topic, partition, "produce")

        answer = self._call(leader, request, produce_error, due)
        self._sequences[partition] = first + settings.records
        return int(answer.responses[0].partition_responses[0].base_offset)

    def _end(self, *, commit: bool) -> None:
        request = EndTxnRequest(self._id, self._producer_id, self._epoch, commit)
        self._call(self._coordinator, request, top_level_error)

    def _note_committed(self, bases: dict[int, int]) -> list[str]:
        violations = []
        for partition, base in bases.items():
            number = self._next[partition] = self._next.get(partition, 0) + self._settings.records
            if base < 0:
                continue
            before = self.committed.get(partition)
            last = base + self._settings.records - 1
            self.committed[partition] = Acknowledged(last, self._name, number - 1)
            if before is not None and base <= before.offset:
                name = f"{self._settings.topic}-{partition}"
                violations.append(
                    f"lost: {name} offset {base} was assigned again, after {before.offset}"
                )
        return violations

    # --- requests ---

    def _coordinator(self) -> UserConnection:
        return self._session.coordinator(self._id, "transaction", key_type=TRANSACTION)

    def _call(
        self,
        connection: Callable[[], UserConnection],
        request: Message,
        error_of: Callable[[Any], int],
        due: float | None = None,
    ) -> Any:
        while True:
            try:
                answer = connection().call(request, error_of, due=due, expected=EXPECTED)
            except REQUEST_ERRORS as error:
                self._session.forget_brokers()
                if isinstance(error, RequestRefused) and error.code not in RETRIABLE:
                    raise
                time.sleep(RETRY_S)
                continue
            if error_of(answer) != ErrorCode.CONCURRENT_TRANSACTIONS:
                return answer
            time.sleep(ENDING_S)

    # --- afterwards ---

    def read_back(self) -> list[str]:
        """Violations: what was committed last in each partition has to be there, as sent."""
        violations: list[str] = []
        for partition, expected in self.committed.items():
            answer = self._fetch_stable(partition, expected.offset)
            name = f"{self._settings.topic}-{partition}"
            if answer.error_code:
                position = self._settings.topic, partition, expected.offset + 1
                violations += self._session.out_of_range(*position)[1]
            elif answer.last_stable_offset <= expected.offset:
                violations.append(
                    f"hanging: {name} is stable up to {answer.last_stable_offset} only, and offset "
                    f"{expected.offset} is committed"
                )
            else:
                found = stamp_at(records_of(answer), expected.offset)
                if found is None or (found.producer, found.number) != expected[1:]:
                    violations.append(
                        f"lost: {name} offset {expected.offset} was committed, and holds "
                        f"{found or 'nothing'} at the end of the run"
                    )
        return violations

    def _fetch_stable(self, partition: int, offset: int) -> PartitionData:
        """Fetch from this offset on, once it is below the last stable offset, or after a while."""
        deadline = time.monotonic() + STABLE_S
        while True:
            answer = self._session.fetch(
                self._settings.topic,
                partition,
                offset,
                max_bytes=READ_BACK_BYTES,
                purpose="read back",
                isolation_level=READ_COMMITTED,
            )
            is_stable = answer.error_code or answer.last_stable_offset > offset
            if is_stable or time.monotonic() > deadline:
                return answer
            time.sleep(RETRY_S)
