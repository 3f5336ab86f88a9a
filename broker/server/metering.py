"""Requests of clients that have a quota: counts their usage, and sets the throttle time of replies.

    Produce      its bytes, once they are on their way to the log; the reply goes out at once
    Fetch        the bytes of its reply; over the limit, the reply is empty instead
    all others   the time the event loop works for them, and the partitions they create or delete

Produce and Fetch are charged for their time as well. After a reply with a throttle time the
connection is muted (KIP-219), because some clients, such as librdkafka, do not wait by themselves.

Time is measured with two readings of the clock for each step: from the arrival of a request until
its handler returns, and while the coroutine of a handler runs. Work in later callbacks (the end of
an append, a parked fetch) is not counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Generator
from typing import Any, ClassVar, TypeVar

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.security.quota_entities import FETCH, MUTATION, PRODUCE, REQUEST
from moldau.broker.security.quota_usage import ClientUsage, Usages
from moldau.broker.server.call import Call
from moldau.broker.server.connection import Connection
from moldau.broker.wire.apis import ApiKey
from moldau.broker.wire.batch import Buffer
from moldau.broker.wire.frame import RequestHeader, response_frame
from moldau.broker.wire.schema import Message

logger = logging.getLogger("moldau.server")

T = TypeVar("T")

_clock = time.perf_counter


class MeteredCall(Call, eq=False, kw_only=True):
    is_metered: ClassVar[bool] = True

    usages: Usages
    user: str
    started: float  # the start of the current step; 0 between steps
    spent: float = 0  # seconds that are not charged yet
    is_charged: bool = False
    is_counted: bool = False  # the bytes of a Produce
    mutations_wait: int = 0

    # --- what is used ---

    def step_begins(self) -> None:
        self.started = _clock()

    def step_ends(self) -> None:
        """Time spent after the reply was made counts too, but causes no wait."""
        now = _clock()
        spent, self.started = now - self.started, 0
        if not self.is_charged:
            self.spent += spent
        elif (usage := self._usage(now * 1000)) is not None:
            usage.was_busy(spent, now * 1000)

    def _usage(self, now: float) -> ClientUsage | None:
        """Looked up each time: quotas may have changed since the request came, and rates been
        dropped."""
        return self.usages.of(self.user, self.header.client_id or "", now)

    def _time_used(self, now: float) -> float:
        spent, self.spent = self.spent, 0
        if self.started:
            spent, self.started = spent + now - self.started, now
        self.is_charged = True
        return spent

    def charge(self) -> int:
        now = _clock()
        spent = self._time_used(now)
        now *= 1000
        usage = self._usage(now)
        if usage is None:
            return 0
        wait, quota = max((usage.busy(spent, now), REQUEST), (self.mutations_wait, MUTATION))
        if self.header.api_key == ApiKey.PRODUCE:
            self._count_bytes(usage, now)
            wait, quota = max((wait, quota), (usage.produce_wait(now), PRODUCE))
        if wait:
            self.usages.throttled(quota, wait)
            self.connection.mute(wait)
        return wait

    def dispatched(self) -> None:
        self.step_ends()
        if self.header.api_key == ApiKey.PRODUCE:
            now = _clock() * 1000
            usage = self._usage(now)
            if usage is not None:
                self._count_bytes(usage, now)

    def _count_bytes(self, usage: ClientUsage, now: float) -> None:
        """Count a Produce when it arrives, not when it is appended: librdkafka sends any number of
        requests without waiting for replies, and all of them would be served before one counts."""
        if not self.is_counted:
            self.is_counted = True
            wait = usage.produced(self.size, now)
            if wait:
                self.connection.mute(wait)

    # --- replies ---

    def reply(self, message: Message) -> None:
        if self.header.api_key == ApiKey.FETCH:
            self._reply_to_fetch(message)
            return
        wait = self.charge()
        if wait and hasattr(message, "throttle_time_ms"):
            message.throttle_time_ms = wait
        Call.reply(self, message)

    def no_reply(self) -> None:
        """The bytes count, the time does not, as in Kafka."""
        now = _clock() * 1000
        usage = self._usage(now)
        if usage is not None:
            self._count_bytes(usage, now)
        Call.no_reply(self)

    def _reply_to_fetch(self, message: Message) -> None:
        parts = self._encoded(message)
        if parts is None:
            return
        now = _clock()
        spent = self._time_used(now)
        now *= 1000
        usage = self._usage(now)
        if usage is not None:
            size = sum(map(len, parts))
            refused_for = usage.fetching(size, now)
            wait = max(usage.busy(spent, now), refused_for)
            if wait:
                if not refused_for:
                    usage.not_fetched(size, now)
                self.usages.throttled(FETCH if refused_for == wait else REQUEST, wait)
                self.connection.mute(wait)
                parts = self._encoded(type(message)(throttle_time_ms=wait))
                assert parts is not None
        self.reply_with(parts)

    def _encoded(self, message: Message) -> list[Buffer] | None:
        header = self.header
        assert header.api is not None
        try:
            return response_frame(header.api, header.api_version, header.correlation_id, message)
        except Exception:
            logger.exception("the reply to %s cannot be encoded", header.api.name)
            self.connection.abort()
            return None

    @property
    def fetch_room(self) -> int | None:
        usage = self._usage(_clock() * 1000)
        return None if usage is None else usage.fetch_room

    # --- topics ---

    def check_mutations(self, strict_since: int) -> None:
        if self.header.api_version < strict_since:
            return
        now = _clock() * 1000
        usage = self._usage(now)
        wait = 0 if usage is None else usage.mutations_wait(now)
        if wait:
            self.mutations_wait = wait
            text = "The throttling quota has been exceeded."
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, text)

    def count_mutations(self, partitions: int, strict_since: int) -> None:
        now = _clock() * 1000
        usage = self._usage(now)
        wait = 0 if usage is None else usage.mutated(partitions, now)
        if self.header.api_version < strict_since:
            self.mutations_wait = max(self.mutations_wait, wait)


class ClientMetering:
    """Meters the connections of a worker, while any client has a quota."""

    def __init__(self, usages: Usages) -> None:
        self._usages = usages

    def call(self, connection: Connection, header: RequestHeader, size: int) -> Call:
        identity = connection.identity
        if identity.is_trusted:
            return Call(connection, header, size)
        user = identity.principal.removeprefix("User:")
        now = _clock()
        if self._usages.of(user, header.client_id or "", now * 1000) is None:
            return Call(connection, header, size)
        return MeteredCall(
            connection=connection,
            header=header,
            size=size,
            usages=self._usages,
            user=user,
            started=now,
        )

    def dispatched(self, call: Call) -> None:
        if isinstance(call, MeteredCall):
            call.dispatched()


def timed(serving: Awaitable[T], call: Call) -> Awaitable[T]:
    """Run `serving`, and charge the steps of its coroutine to the call."""
    assert isinstance(call, MeteredCall)
    return _Timed(serving, call)


class _Timed(Awaitable[T]):
    def __init__(self, serving: Awaitable[T], call: MeteredCall) -> None:
        self._serving = serving
        self._call = call

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._serving.__await__()
        call = self._call
        fault: BaseException | None = None
        value: Any = None
        while True:
            call.step_begins()
            try:
                if fault is None:
                    waits_for = steps.send(value)
                else:
                    waits_for = steps.throw(fault)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                call.step_ends()
            fault = None
            try:
                value = yield waits_for
            except BaseException as thrown:
                fault = thrown
