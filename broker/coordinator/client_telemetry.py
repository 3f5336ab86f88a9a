"""The shell around `broker/telemetry`: subscriptions from the store, clocks, turns.

Pushes are unpacked where they were received, which takes some milliseconds at most, and read in
slices (coordinator/time_slicer.py): a thread would hold the interpreter against the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Generator, Mapping

from moldau.broker.coordinator.time_slicer import TimeSlicer, Work
from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.metrics.document import ClientRow, Family, Kind, Sample
from moldau.broker.settings.kafka import BrokerConfig, InvalidConfig
from moldau.broker.store.topics import TopicStore
from moldau.broker.telemetry.instances import Instances
from moldau.broker.telemetry.otlp import MalformedMetrics, Metrics, read_steps
from moldau.broker.telemetry.subscriptions import DEFAULT, Subscription, read_subscription
from moldau.broker.wire.codecs import CodecError, OutputTooLarge, decompress

logger = logging.getLogger("moldau.telemetry")


class ClientTelemetry:
    def __init__(self, store: TopicStore, config: BrokerConfig) -> None:
        self._store = store
        self.by_name: Mapping[str, Mapping[str, str]] = {}  # what is set for subscriptions
        max_bytes = config.get_int("telemetry.max.bytes")
        self.instances = Instances(lambda: uuid.uuid4().bytes, max_bytes)
        self.instances.use([DEFAULT])
        self._slices = TimeSlicer()

    async def load(self) -> None:
        found = await self._store.client_metrics_configs()
        if found != self.by_name:
            self.by_name = found
            subscriptions = [_subscription(*each) for each in found.items()]
            self.instances.use([each for each in subscriptions if each] if found else [DEFAULT])

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def read(self, codec: int, data: bytes) -> Metrics:
        """Raises KafkaError."""
        unpacked = _unpacked(codec, data, self.instances.max_bytes)
        found: asyncio.Future[Metrics | str | None] = asyncio.get_running_loop().create_future()
        self._slices.start(Work("reading metrics", _read_steps(unpacked), found.set_result))
        outcome = await found
        if not isinstance(outcome, Metrics):
            raise KafkaError(ErrorCode.INVALID_RECORD, outcome or "")
        return outcome

    # --- the report ---

    def rows(self) -> list[ClientRow]:
        return self.instances.rows(self.now_ms())

    def families(self) -> list[Family]:
        return [
            Family("moldau_telemetry_clients", Kind.GAUGE, "Clients asked for their own metrics.",
                   (), [Sample((), len(self.instances))]),
        ]  # fmt: skip


def _subscription(name: str, configs: Mapping[str, str]) -> Subscription | None:
    try:
        return read_subscription(configs)
    except InvalidConfig as fault:  # it was stored by a worker that could use it
        logger.warning("the client metrics subscription %r is left out: %s", name, fault)
        return None


def _unpacked(codec: int, data: bytes, limit: int) -> bytes:
    try:
        return decompress(codec, data, limit)
    except OutputTooLarge as fault:
        # Kafka's answer until 4.3 makes a client stop for good: the next push may be smaller.
        raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE, str(fault)) from None
    except CodecError as fault:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(fault)) from None


def _read_steps(data: bytes) -> Generator[None, None, Metrics | str]:
    """Returns what was read, or why that cannot be done."""
    try:
        return (yield from read_steps(data))
    except MalformedMetrics as fault:
        return str(fault)
