"""Fetch (key 1): whole batches from the tail cache or the store; waits for new ones if asked to.

KIP-74: limits per response and partition, the first batch whole whatever its size. KIP-227: fetch
sessions are declined (session id 0). KIP-320: leader epochs are checked. KIP-516: topic ids from
v13. A waiting fetch is woken by appends, never by a poll; its timer only ends the wait.

One Fetch of a connection at a time, as in Kafka: what follows could not be answered before it, and
a client could ask for any amount of memory at once.
"""

from __future__ import annotations

import asyncio
from functools import partial

from broker.errors import ErrorCode, KafkaError, StoreFault, code_for
from broker.handlers.context import LEADER_EPOCH, Broker
from broker.log.logs import AnyLog
from broker.log.native.group_reader import GroupReader
from broker.log.native.log import NativeLog
from broker.log.topics import Topic
from broker.server.connection import Call
from broker.wire.batch import Buffer
from broker.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from broker.wire.schema import NO_UUID

READ_COMMITTED = 1
NO_SESSION_EPOCHS = (-1, 0)
FETCH_SESSION_ID_NOT_FOUND = 70


def handle(broker: Broker, request: FetchRequest, call: Call) -> None:
    if request.session_id and request.session_epoch not in NO_SESSION_EPOCHS:
        call.reply(FetchResponse(error_code=FETCH_SESSION_ID_NOT_FOUND))
        return
    call.connection.hold()
    topics = [_known_topic(broker, item) for item in request.topics]
    if None in topics:
        broker.logs.spawn(_look_up_and_start(broker, request, call))
    else:
        FetchCall(broker, request, call, topics).start()


def _known_topic(broker: Broker, item: FetchTopic) -> Topic | None:
    if item.topic_id != NO_UUID:
        return broker.topics.by_id(item.topic_id)
    return broker.topics.get(item.topic)


async def _look_up_and_start(broker: Broker, request: FetchRequest, call: Call) -> None:
    """Perhaps created by another worker a moment ago: the store knows."""
    topics: list[Topic | None] = []
    for item in request.topics:
        try:
            if item.topic_id != NO_UUID:
                topics.append(await broker.topics.find_id(item.topic_id))
            else:
                topics.append(await broker.topics.find(item.topic))
        except StoreFault:
            topics.append(None)
    FetchCall(broker, request, call, topics).start()


class Part:
    """One partition of a fetch."""

    __slots__ = ("answer", "limit", "log", "offset")

    def __init__(self, answer: PartitionData, log: AnyLog | None, item: FetchPartition):
        self.answer = answer
        self.log = log
        self.offset = item.fetch_offset
        self.limit = max(item.partition_max_bytes, 0)


class FetchCall:
    """One Fetch request, from its arrival to its reply."""

    def __init__(
        self, broker: Broker, request: FetchRequest, call: Call, topics: list[Topic | None]
    ) -> None:
        self.broker = broker
        self.call = call
        self._request = request
        self._response = FetchResponse()
        self._parts: list[Part] = []
        self._limit = max(min(request.max_bytes, broker.fetch_max_bytes), 0)
        self._size = 0
        self._pending = 0
        self._has_error = False
        self._finished = False
        self._known_before = 0  # bytes of its logs when reading began
        self._seen_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        for topic, item in zip(topics, request.topics, strict=True):
            self._add_topic(topic, item)

    def _add_topic(self, topic: Topic | None, item: FetchTopic) -> None:
        committed = self._request.isolation_level == READ_COMMITTED
        answers = []
        for partition in item.partitions:
            answer = PartitionData(
                partition.partition,
                high_watermark=-1,
                aborted_transactions=[] if committed else None,
                records=b"",
            )
            answers.append(answer)
            log: AnyLog | None = None
            if topic is None and item.topic_id != NO_UUID:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            elif topic is None or not 0 <= partition.partition < topic.partitions:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif partition.current_leader_epoch > LEADER_EPOCH:
                answer.error_code = ErrorCode.UNKNOWN_LEADER_EPOCH
            else:
                log = self.broker.logs.log_for(topic, partition.partition)
            self._has_error = self._has_error or log is None
            self._parts.append(Part(answer, log, partition))
        self._response.responses.append(FetchableTopicResponse(item.topic, item.topic_id, answers))

    # --- reading ---

    def start(self) -> None:
        """Make sure that every log is known and up to date, then read."""
        logs = self.broker.logs
        self._pending = 1
        for part in self._parts:
            log = part.log
            if log is None:
                continue
            if isinstance(log, NativeLog):
                self._find_reader(log)
            watched = logs.is_watched(log)
            if watched and log.is_loaded and part.offset <= log.end:
                continue
            self._pending += 1
            known = partial(self._known, part)
            if watched and not log.is_loaded:
                log.when_loaded(known)
            else:
                # Beyond the end of a watched one too: the news of an append may be on its way, and
                # OFFSET_OUT_OF_RANGE makes a consumer begin anew.
                log.when_current(known)
        self._one_known()

    def _find_reader(self, log: NativeLog) -> None:
        """Make sure that a member of a group is known as such from its first fetch on."""
        who = (self.call.header.client_id or "", self.call.peer)
        readership = self.broker.readership
        if not readership.knows(log, *who):

            async def find() -> None:
                await readership.look_for(log, *who)
                self._one_known()

            self._pending += 1
            self.broker.logs.spawn(find())

    def _known(self, part: Part, fault: BaseException | None) -> None:
        if fault is not None:
            self._fail(part, fault)
        elif part.log is not None and self._request.max_wait_ms > 0:
            self.broker.logs.watch(part.log)
        self._one_known()

    def _one_known(self) -> None:
        self._pending -= 1
        if self._pending == 0:
            self._collect()

    def _fail(self, part: Part, fault: BaseException) -> None:
        part.answer.error_code = code_for(fault)
        part.log = None
        self._has_error = True

    def _collect(self) -> None:
        """Read every partition: at once from the tail cache, else from the store."""
        self._known_before = self._known_bytes()
        self._size = 0
        budget = self.call.connection.budget
        left = min(self._limit, budget.reply_room)
        first = True  # one batch is returned whatever its size
        self._pending = 1
        for part in self._parts:
            log = part.log
            if log is None:
                continue
            if not log.start <= part.offset <= log.end:
                self._fail(part, KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE))
                self._mark(part, log)
                continue
            reading = self._reading_of(log) if isinstance(log, NativeLog) else None
            at_end = part.offset == log.end
            if isinstance(log, NativeLog) and at_end:
                # The first fetch of a group's member makes the group in Redis, at the end too.
                at_end = log.is_plain and (reading is None or reading.stands_at == log.end)
            if at_end or (left <= 0 and not first):
                self._mark(part, log)
                continue
            limit = min(part.limit, left)
            found = log.read_tail(part.offset, limit, at_least_one=first)
            if found is None:
                left -= limit
                budget.hold(limit)
                self._pending += 1
                done = partial(self._read, part, log, limit)
                (reading or log).read_store(part.offset, limit, at_least_one=first, done=done)
                first = False
            elif found:
                left -= self._take(part, log, found)
                first = False
            else:
                self._mark(part, log)
        self._one_read()

    def _reading_of(self, log: NativeLog) -> GroupReader | None:
        """The reading of the group's member that this fetch must come from, if that is certain."""
        client_id = self.call.header.client_id or ""
        place = (log.topic, log.partition)
        owner = self.broker.readership.members.owner(place, client_id, self.call.peer)
        if owner is None:
            return None
        reading: GroupReader | None = log.readings.get(owner.group)
        if reading is None or reading.owner != owner:
            reading = log.readings[owner.group] = GroupReader(log, self.broker.store.native, owner)
        return reading

    def _mark(self, part: Part, log: AnyLog) -> None:
        answer = part.answer
        answer.high_watermark = answer.last_stable_offset = log.end
        answer.log_start_offset = log.start

    def _take(self, part: Part, log: AnyLog, found: list[Buffer]) -> int:
        self._mark(part, log)
        part.answer.records = found
        size = sum(map(len, found))
        self._size += size
        return size

    def _read(self, part: Part, log: AnyLog, held: int, got: list[Buffer] | StoreFault) -> None:
        self.call.connection.budget.release(held)
        if isinstance(got, StoreFault):
            self._fail(part, got)
        else:
            self._take(part, log, got)
        self._one_read()

    def _one_read(self) -> None:
        self._pending -= 1
        if self._pending or self._finished:
            return
        request = self._request
        if (
            self._has_error
            or self._size >= request.min_bytes
            or request.max_wait_ms <= 0
            or self.call.connection.closing  # draining, or lost: nobody would wake us
        ):
            self.finish()
        elif self._timer is None:
            self._park()
        else:
            self._wait()

    # --- waiting ---

    def _park(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._request.max_wait_ms / 1000, self._waited_long_enough)
        self.call.on_lost = self._abandon
        self.broker.parked.add(self)
        self._wait()

    def _wait(self) -> None:
        self._seen_bytes = self._known_before - self._size
        for part in self._parts:
            if part.log is not None:
                part.log.waiters[self] = self._woken
                self.broker.logs.watch(part.log)  # it may have been let go of while we read
        if self._known_bytes() != self._known_before:
            self._woken()  # something came while we read

    def _known_bytes(self) -> int:
        return sum(part.log.state.size for part in self._parts if part.log is not None)

    def _woken(self) -> None:
        if self._finished:
            return
        if self._log_gone():
            self._stop_waiting()
            self.start()  # which hears of what is gone, and says so at once
        elif self._known_bytes() - self._seen_bytes >= self._request.min_bytes:
            self._stop_waiting()
            self._collect()
        else:
            for part in self._parts:
                if part.log is not None:
                    part.log.waiters[self] = self._woken

    def _log_gone(self) -> bool:
        return any(part.log is not None and not part.log.is_loaded for part in self._parts)

    def _waited_long_enough(self) -> None:
        if self.broker.settings.workers > 1:
            # Should a wake-up ever have been lost, the client's next fetch sees the new end.
            for part in self._parts:
                if part.log is not None:
                    part.log.look()
        self.finish()

    def _stop_waiting(self) -> None:
        for part in self._parts:
            if part.log is not None:
                part.log.waiters.pop(self, None)

    def _abandon(self) -> None:
        self._finished = True
        self._unpark()

    def _unpark(self) -> None:
        self._stop_waiting()
        if self._timer is not None:
            self._timer.cancel()
            self.broker.parked.discard(self)

    def finish(self) -> None:
        """Reply with what there is."""
        if not self._finished:
            self._finished = True
            self._unpark()
            self.call.reply(self._response)
            self.call.connection.go_on_soon()
