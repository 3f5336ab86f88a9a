"""Users of transactions: producers that commit or abort, and readers of what is committed.

They have a topic of their own beside that of the others, whose readers take every record for one to
be checked.
"""

from __future__ import annotations

import logging
import random
import secrets
import time

from moldau.broker.wire.codecs import CODEC_NAMES
from moldau.broker.wire.messages.fetch import PartitionData
from moldau.loadtest.users.client.committed import CommittedCheck
from moldau.loadtest.users.client.session import REQUEST_ERRORS, RETRY_S, records_of
from moldau.loadtest.users.client.stamped_producer import ProducerSettings
from moldau.loadtest.users.client.stamped_transactions import READ_COMMITTED, StampedTransactions
from moldau.loadtest.users.kafka_user import KafkaUser
from moldau.loadtest.users.options import TOPIC_CONFIGS
from moldau.loadtest.users.readers import TailReader

PARTITIONS_OF_A_TRANSACTION = 2
COMMITTED_SHARE = 0.7

logger = logging.getLogger("moldau.loadtest")


class UserOfTransactions(KafkaUser):
    abstract = True

    @property
    def topic(self) -> str:
        return f"{super().topic}-transactions"

    def on_start(self) -> None:
        """Create the topic, unless another user has."""
        while True:
            try:
                self.session.create_topic(self.topic, self.options.partitions, TOPIC_CONFIGS)
                break
            except REQUEST_ERRORS:
                time.sleep(RETRY_S)
        super().on_start()


class TransactionalProducer(UserOfTransactions):
    """Transactions over two partitions, of which some are aborted."""

    weight = 2

    def on_start(self) -> None:
        super().on_start()
        options = self.options
        settings = ProducerSettings(
            self.topic, options.record_bytes, options.batch_bytes, CODEC_NAMES[options.codec]
        )
        transactional_id = f"{self.topic}-{secrets.token_hex(6)}"
        self.producer = StampedTransactions(self.session, settings, transactional_id)

    def step(self) -> None:
        due = self.schedule.wait()
        partitions = {self.next_partition() for _ in range(PARTITIONS_OF_A_TRANSACTION)}
        commit = random.random() < COMMITTED_SHARE
        self.report_violations(self.producer.transact(partitions, due, commit=commit))

    def on_stop(self) -> None:
        """End what is open, for which others wait, and look for what was committed last."""
        try:
            if self.partitions:
                self.producer.init()
                self.report_violations(self.producer.read_back())
        except REQUEST_ERRORS as error:
            logger.warning("committed records could not be read back: %s", error)
        super().on_stop()


class CommittedReader(UserOfTransactions, TailReader):
    """Parked at the last stable offset of a partition."""

    weight = 2
    isolation_level = READ_COMMITTED
    check: CommittedCheck | None = None

    def begin(self) -> CommittedCheck:
        plain = super().begin()
        return CommittedCheck(f"{self.topic}-{self.partition}", plain.position)

    def feed(self, answer: PartitionData) -> list[str]:
        assert self.check is not None
        return self.check.feed(records_of(answer), answer.aborted_transactions or ())
