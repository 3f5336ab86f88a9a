"""The shell around `broker/telemetry`: subscriptions from the store, clocks, threads.

A push of some size is read in a thread, one at a time: reading takes about 0.1 ms per kilobyte,
and requests do not wait for that.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping

from broker.errors import ErrorCode, KafkaError
from broker.metrics.document import ClientRow, Family, Kind, Sample
from broker.server.call import Call
from broker.settings.kafka import BrokerConfig, InvalidConfig
from broker.store.topics import TopicStore
from broker.telemetry.instances import Asker, Instances
from broker.telemetry.otlp import MalformedMetrics, Metrics, read_metrics
from broker.telemetry.subscriptions import DEFAULT, Client, Subscription, read_subscription
from broker.wire.codecs import CodecError, OutputTooLarge, decompress

logger = logging.getLogger("moldau.telemetry")

SMALL = 2048  # bytes of a push that is unpacked where it was received,
SMALL_UNPACKED = 8 * 1024  # and read there
MAX_CLIENT_ID = 256  # characters


class ClientTelemetry:
    def __init__(self, store: TopicStore, config: BrokerConfig) -> None:
        self._store = store
        self.by_name: Mapping[str, Mapping[str, str]] = {}  # what is set for subscriptions
        max_bytes = config.get_int("telemetry.max.bytes")
        self.instances = Instances(lambda: uuid.uuid4().bytes, max_bytes)
        self.instances.use([DEFAULT])
        self._reading = asyncio.Lock()

    async def load(self) -> None:
        found = await self._store.client_metrics_configs()
        if found != self.by_name:
            self.by_name = found
            subscriptions = [_subscription(*each) for each in found.items()]
            self.instances.use([each for each in subscriptions if each] if found else [DEFAULT])

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def asker(self, call: Call) -> Asker:
        identity = call.identity
        name, version = identity.software
        client_id = (call.header.client_id or "")[:MAX_CLIENT_ID]
        client = Client(client_id, identity.host, identity.port, name, version)
        return Asker(identity.principal, id(call.connection), client)

    async def read(self, codec: int, data: bytes) -> Metrics:
        """Raises KafkaError."""
        limit = self.instances.max_bytes
        if len(data) > SMALL:
            async with self._reading:
                return await asyncio.to_thread(lambda: _read(_unpacked(codec, data, limit)))
        unpacked = _unpacked(codec, data, limit)
        if len(unpacked) > SMALL_UNPACKED:
            async with self._reading:
                return await asyncio.to_thread(_read, unpacked)
        return _read(unpacked)

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


def _read(data: bytes) -> Metrics:
    try:
        return read_metrics(data)
    except MalformedMetrics as fault:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(fault)) from None
