"""An instance of a consume-transform-produce application as a process of its own, to be killed.

    python -m tests.chaos.eos_process <bootstrap> <group> <input> <output> <transactional id>

It does what librdkafka's documentation asks for: reads committed records, writes one record for
each, and commits their offsets in the same transaction. An error that requires it aborts the
transaction, and what was read since the last commit is read again; a fatal one, as when another
instance has fenced it, makes it begin again with new clients. Each transaction that it knows to be
committed is a line on standard output: how many records.

The group's metadata is taken when partitions are assigned, not when offsets are sent: by then the
group may have given the partitions to another instance, and only the old generation is refused.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

SESSION_MS = 3_000
TRANSACTION_TIMEOUT_MS = 20_000
MOST_RECORDS = 40  # in a transaction
GATHER_S = 0.1
PATIENCE_S = 5.0  # of one attempt
HANGS_AFTER_S = 25.0  # a call that may take as long as a transaction
QUICK = {"reconnect.backoff.max.ms": 500, "retry.backoff.max.ms": 300, "log_level": 2}
# A call with these may be made again as it is.
UNFINISHED = {KafkaError._TIMED_OUT, KafkaError._PREV_IN_PROGRESS}


class Restart(Exception):
    """Nothing more is possible with these clients."""


def report(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@contextmanager
def begins_again_if_it_hangs() -> Iterator[None]:
    """librdkafka's send_offsets_to_transaction has no timeout while it looks for the group's
    coordinator (its issue 5456), and does not look again for one that was left out of a Metadata
    answer (5511), as a broker is that is restarted."""

    def begin_again() -> None:
        report("begins again: send_offsets_to_transaction hangs")
        os.execv(sys.executable, [sys.executable, "-m", "tests.chaos.eos_process", *sys.argv[1:]])

    timer = threading.Timer(HANGS_AFTER_S, begin_again)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Instance:
    def __init__(self, bootstrap: str, group: str, source: str, target: str, name: str) -> None:
        self._source, self._target = source, target
        self.is_stopped = False
        self._gathered: list[Any] = []
        self._metadata: object | None = None
        self._next: dict[int, int] = {}  # offsets that may come, by partition
        common = {"bootstrap.servers": bootstrap, **QUICK}
        self._consumer = Consumer(
            {
                **common,
                "group.id": group,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 500,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
            }
        )
        self._producer = Producer(
            {
                **common,
                "transactional.id": name,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 1,
            }
        )

    def run(self) -> None:
        try:
            self._attempt(lambda: self._producer.init_transactions(PATIENCE_S))
            # With callbacks librdkafka waits for a poll before it gives partitions away.
            self._consumer.subscribe(
                [self._source], on_assign=self._assigned, on_revoke=self._revoked
            )
            while not self.is_stopped:
                self._turn()
        finally:
            self._consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._metadata = consumer.consumer_group_metadata()
        # Nothing below what is committed may come. librdkafka has delivered records that it had
        # fetched for an assignment it had lost, right after it was given the partition again; the
        # broker had answered its OffsetFetch with a higher offset.
        while not self.is_stopped:
            try:
                self._next = {
                    place.partition: place.offset for place in self._committed(partitions)
                }
            except KafkaException as fault:
                report(f"committed offsets are not known yet: {fault}")
                time.sleep(0.1)  # some errors come at once
            else:
                return

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._metadata = None
        self._gathered.clear()
        self._next.clear()

    def _turn(self) -> None:
        self._gather()
        if not self._gathered:
            return
        try:
            self._transact(self._gathered)
        except KafkaException as fault:
            self._undo(fault.args[0])
        else:
            os.write(1, b"%d\n" % len(self._gathered))
        self._gathered = []

    def _gather(self) -> None:
        until = time.monotonic() + GATHER_S
        while len(self._gathered) < MOST_RECORDS and time.monotonic() < until:
            message: Any = self._consumer.poll(0.02)
            if message is None:
                continue
            if message.error() is None:
                self._take(message)
            elif message.error().fatal():
                raise Restart(str(message.error()))

    def _take(self, message: Any) -> None:
        """Offsets only rise, unless partitions were assigned or rewound: what a client delivers a
        second time, as after it has validated its position (KIP-320) or when it was given a
        partition that it had before, is not written again."""
        partition, offset = message.partition(), message.offset()
        if offset < self._next.get(partition, 0):
            report(f"delivered again: {partition}, offset {offset}")
            return
        self._next[partition] = offset + 1
        self._gathered.append(message)

    # --- a transaction ---

    def _transact(self, messages: list[Any]) -> None:
        producer = self._producer
        producer.begin_transaction()
        positions: dict[int, int] = {}
        for message in messages:
            # The same number to the same partition: order can be compared too.
            producer.produce(self._target, message.value(), partition=message.partition())
            positions[message.partition()] = message.offset() + 1
        producer.poll(0)
        offsets = [TopicPartition(self._source, *each) for each in positions.items()]
        with begins_again_if_it_hangs():
            self._attempt(
                lambda: producer.send_offsets_to_transaction(offsets, self._metadata, PATIENCE_S)
            )
        self._attempt(lambda: producer.commit_transaction(PATIENCE_S))

    def _attempt(self, call: Callable[[], None]) -> None:
        """Repeat until it is done, or ends in an error that is more than "not yet"."""
        while True:
            try:
                call()
            except KafkaException as fault:
                error = fault.args[0]
                if error.fatal():
                    raise Restart(str(error)) from None
                if error.txn_requires_abort() or not (
                    error.retriable() or error.code() in UNFINISHED
                ):
                    raise
                report(f"again: {error}")
                if self.is_stopped:
                    raise Restart("stopped") from None
            else:
                return

    def _undo(self, error: KafkaError) -> None:
        report(f"aborted: {error}")
        if not error.txn_requires_abort():
            raise Restart(str(error))
        try:
            self._attempt(lambda: self._producer.abort_transaction(PATIENCE_S))
            self._rewind()
        except KafkaException as fault:
            raise Restart(str(fault)) from None

    def _rewind(self) -> None:
        """Seek to the committed offsets: the records of the aborted transaction come again."""
        self._next.clear()
        while not self.is_stopped:
            try:
                for place in self._committed(self._consumer.assignment()):
                    self._consumer.seek(place)
            except KafkaException as fault:
                report(f"not rewound yet: {fault}")
                # Perhaps its partitions are being given away, which needs polls.
                self._consumer.poll(0.1)
            else:
                return

    def _committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        places = self._consumer.committed(partitions, PATIENCE_S)
        for place in places:
            if place.error is not None:
                raise KafkaException(place.error)
            place.offset = max(place.offset, 0)
        return places


def main() -> None:
    stopped = False
    instance: Instance | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        if instance is not None:
            instance.is_stopped = True

    signal.signal(signal.SIGTERM, stop)
    while not stopped:
        try:
            instance = Instance(*sys.argv[1:])
            instance.run()
        except (Restart, KafkaException) as fault:
            report(f"begins again: {fault}")


if __name__ == "__main__":
    main()
