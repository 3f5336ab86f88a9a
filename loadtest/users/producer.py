"""The user that produces: batches of stamped records on a schedule, to the partitions in turn."""

from __future__ import annotations

import logging

from moldau.broker.wire.codecs import CODEC_NAMES
from moldau.loadtest.users.client.session import REQUEST_ERRORS
from moldau.loadtest.users.client.stamped_producer import ProducerSettings, StampedProducer
from moldau.loadtest.users.kafka_user import KafkaUser

logger = logging.getLogger("moldau.loadtest")


class Producer(KafkaUser):
    weight = 6

    def on_start(self) -> None:
        super().on_start()
        options = self.options
        acks = {"all": -1, "1": 1, "0": 0}[options.acks]
        settings = ProducerSettings(
            options.topic,
            options.record_bytes,
            options.batch_bytes,
            CODEC_NAMES[options.codec],
            acks,
            options.idempotent == "yes" and acks == -1,
        )
        self.producer = StampedProducer(self.session, settings)

    def step(self) -> None:
        due = self.schedule.wait()
        self.report_violations(self.producer.produce(self.next_partition(), due))

    def on_stop(self) -> None:
        """Look for the last record of each partition that was acknowledged."""
        try:
            if self.partitions:
                self.report_violations(self.producer.read_back())
        except REQUEST_ERRORS as error:
            logger.warning("acknowledged records could not be read back: %s", error)
        super().on_stop()
