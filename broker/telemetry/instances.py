"""The clients that ask which metrics to push, and push them: when they may, and their answers.

This follows Kafka's ClientMetricsManager, separately in each worker: a client may ask one worker
and push to another, which then knows as much as the first one (see `subscriptions.py`).

    ask      GetTelemetrySubscriptions: a client without an instance id gets one. Allowed once per
             interval, unless the last push was refused because of its subscription
    check    PushTelemetry: allowed once per interval, and once after every answer, as clients add
             a jitter to the first push; no push follows a terminating one
    push     the pushed values

A client that comes back with another connection starts again. Instances end after three intervals
without a request, or after a minute if that is longer. There are at most `MAX_CLIENTS` instances
with at most `MAX_VALUES` values: the least recently active one is removed first.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable

import msgspec

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.metrics.document import ClientRow
from moldau.broker.telemetry.otlp import Metrics
from moldau.broker.telemetry.subscriptions import Client, Subscription, Wanted, wanted
from moldau.broker.telemetry.values import Values
from moldau.broker.wire.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from moldau.broker.wire.schema import NO_UUID

MAX_CLIENTS = 4096
MAX_VALUES = 20_000
MAX_BYTES = 1 << 20  # of a push
MIN_LIFE_MS = 60_000
INTERVALS_OF_LIFE = 3
COMPRESSION_TYPES = (ZSTD, LZ4, GZIP, SNAPPY)  # in order of preference; none at all is fine too
_RESERVED = (NO_UUID, bytes(15) + b"\1")
_NEVER = -(1 << 62)
# After these errors a client asks again at once.
_ASKS_AGAIN = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


class Asker(msgspec.Struct, frozen=True):
    """The sender of a request. An instance id alone proves nothing."""

    principal: str
    connection: int  # a number that only this connection has while it is open
    client: Client


class Instance:
    __slots__ = (
        "asker",
        "has_asked",
        "instance_id",
        "is_terminating",
        "last_error",
        "last_get",
        "last_push",
        "pushed_ms",
        "seen",
        "subscription_id",
        "text",
        "values",
        "version",
        "wanted",
    )

    def __init__(self, instance_id: bytes, asker: Asker) -> None:
        self.instance_id = instance_id
        self.text = base64.urlsafe_b64encode(instance_id).decode().rstrip("=")  # Kafka's form
        self.asker = asker
        self.values = Values()
        self.pushed_ms = 0  # since 1970; 0 if it has pushed nothing
        self.seen = 0

    def begin(self, asker: Asker, asked_for: Wanted, version: int) -> None:
        self.asker = asker
        self.wanted = asked_for
        self.subscription_id = asked_for.subscription_id(self.instance_id)
        self.version = version
        self.last_get = self.last_push = _NEVER
        self.has_asked = False  # since its last push
        self.is_terminating = False
        self.last_error = ErrorCode.NONE

    @property
    def life_ms(self) -> int:
        return max(MIN_LIFE_MS, INTERVALS_OF_LIFE * self.wanted.interval_ms)

    def row(self) -> ClientRow:
        client = self.asker.client
        return ClientRow(
            self.text,
            client.client_id,
            client.host,
            client.software_name,
            client.software_version,
            self.pushed_ms,
            self.values.resource,
            self.is_terminating,
            list(self.values.by_key.values()),
        )


class Instances:
    def __init__(self, new_id: Callable[[], bytes], max_bytes: int = MAX_BYTES) -> None:
        self._new_id = new_id
        self.max_bytes = min(max_bytes, MAX_BYTES)
        self._subscriptions: tuple[Subscription, ...] = ()
        self._version = 0
        # The least recently active comes first.
        self._by_key: dict[tuple[str, bytes], Instance] = {}
        self._values = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def use(self, subscriptions: Iterable[Subscription]) -> None:
        self._subscriptions = tuple(subscriptions)
        self._version += 1

    # --- requests ---

    def ask(self, instance_id: bytes, asker: Asker, now: int) -> Instance:
        """Answer a GetTelemetrySubscriptions. `now` is from a monotonic clock. Raises
        KafkaError."""
        if instance_id == NO_UUID:
            instance_id = self._new_id()
        instance = self._instance(instance_id, asker, now)
        since = now - max(instance.last_get, instance.last_push)
        if since < instance.wanted.interval_ms and instance.last_error not in _ASKS_AGAIN:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "asked before the next interval")
        instance.last_get = now
        instance.has_asked = True
        instance.last_error = ErrorCode.NONE
        return instance

    def check(
        self,
        instance_id: bytes,
        asker: Asker,
        now: int,
        *,
        subscription_id: int,
        compression_type: int,
        size: int,
        is_terminating: bool,
    ) -> Instance:
        """Return the instance whose push is to be read. Raises KafkaError."""
        if instance_id in _RESERVED:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a push without a client instance id")
        instance = self._instance(instance_id, asker, now)
        was_terminating, instance.is_terminating = instance.is_terminating, is_terminating
        error = ErrorCode.NONE
        if was_terminating:
            error = ErrorCode.INVALID_REQUEST
        elif not self._is_due(instance, now) and not is_terminating:
            error = ErrorCode.THROTTLING_QUOTA_EXCEEDED
        elif subscription_id != instance.subscription_id:
            error = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        elif compression_type != NONE and compression_type not in COMPRESSION_TYPES:
            error = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        elif size > self.max_bytes:
            error = ErrorCode.TELEMETRY_TOO_LARGE
        instance.last_error = error
        if error:
            raise KafkaError(error)
        return instance

    @staticmethod
    def _is_due(instance: Instance, now: int) -> bool:
        is_due = instance.has_asked or now - instance.last_push >= instance.wanted.interval_ms
        if is_due:
            instance.has_asked = False
            instance.last_push = now
        return is_due

    def push(self, instance: Instance, metrics: Metrics, clock_ms: int) -> None:
        """Take over the pushed values. `clock_ms` counts from 1970."""
        key = instance.asker.principal, instance.instance_id
        if self._by_key.get(key) is not instance:
            return  # it was removed while the push was being read
        before = len(instance.values)
        instance.values.push(metrics, instance.wanted)
        instance.pushed_ms = clock_ms
        self._values += len(instance.values) - before
        while self._values > MAX_VALUES and len(self._by_key) > 1:
            self._remove(next(iter(self._by_key)))

    # --- instances ---

    def _instance(self, instance_id: bytes, asker: Asker, now: int) -> Instance:
        key = asker.principal, instance_id
        instance = self._by_key.pop(key, None)
        if instance is None:
            if len(self._by_key) >= MAX_CLIENTS:
                self.expire(now)
            while len(self._by_key) >= MAX_CLIENTS:
                self._remove(next(iter(self._by_key)))
            instance = Instance(instance_id, asker)
            self._begin(instance, asker)
        elif instance.version != self._version or instance.asker.connection != asker.connection:
            self._begin(instance, asker)
        instance.seen = now
        self._by_key[key] = instance
        return instance

    def _begin(self, instance: Instance, asker: Asker) -> None:
        asked_for = wanted(self._subscriptions, asker.client, instance.text)
        instance.begin(asker, asked_for, self._version)

    def _remove(self, key: tuple[str, bytes]) -> None:
        self._values -= len(self._by_key.pop(key).values)

    def expire(self, now: int) -> None:
        over = [key for key, each in self._by_key.items() if now - each.seen > each.life_ms]
        for key in over:
            self._remove(key)

    def rows(self, now: int) -> list[ClientRow]:
        self.expire(now)
        return [each.row() for each in self._by_key.values() if each.pushed_ms]
