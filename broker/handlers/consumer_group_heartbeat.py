"""ConsumerGroupHeartbeat (key 68, KIP-848): join, stay, leave; the broker assigns partitions.

v1: expressions (SubscribedTopicRegex), and member ids that clients generate. KIP-1251: assignment
epochs of partitions. A member at rest sends the same bytes every time: its connection keeps a
`BeatRoute`, which answers without decoding anything and without the store.

Clients stop for good after every error other than COORDINATOR_LOAD_IN_PROGRESS,
COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, UNKNOWN_MEMBER_ID and FENCED_MEMBER_EPOCH. Faults of the
broker are answered with one of these, or close the connection.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from itertools import chain, repeat

from moldau.broker.broker import Broker
from moldau.broker.coordinator.groups.coordinator import GroupCoordinator
from moldau.broker.errors import ErrorCode
from moldau.broker.group.effects import Answer, Effect, HeartbeatAnswer
from moldau.broker.group.events import ConsumerHeartbeat
from moldau.broker.group.modern.heartbeat import check_request
from moldau.broker.group.modern.members import Member
from moldau.broker.group.modern.reconcile import repeats_all
from moldau.broker.group.topics import TopicIdPartition, by_topic
from moldau.broker.handlers.details.authorization import GROUP, GROUP_DENIED, TOPIC, is_denied
from moldau.broker.machine import Reply
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call, ReplyHandle, RequestRoute
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import RequestHeader, response_frame
from moldau.broker.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from moldau.broker.wire.primitives import INT32, uvarint
from moldau.broker.wire.repeats import ResponseTemplate

HEARTBEAT = APIS[ApiKey.CONSUMER_GROUP_HEARTBEAT]


class HeartbeatReply(ReplyHandle):
    __slots__ = ()

    def answered(self, answer: Answer) -> None:
        assert isinstance(answer, HeartbeatAnswer)
        self._call.reply(response(answer))


def handle(broker: Broker, request: ConsumerGroupHeartbeatRequest, call: Call) -> BeatRoute | None:
    refused = _refusal(broker, request, call)
    if refused is not None:
        call.reply(response(refused))
        return None
    coordinator = broker.group_coordinator
    version = call.header.api_version
    if version == 0 and not request.member_id and request.member_epoch == 0:
        request.member_id = str(uuid.uuid4())
    event = _event(request, HeartbeatReply(call), request.member_epoch, call)
    wrong = check_request(coordinator.groups.config.consumer, event, version)
    if not request.group_id:
        wrong = HeartbeatAnswer(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    if wrong is not None:
        call.reply(response(wrong))
        return None
    if request.subscribed_topic_regex and coordinator.jobs.visibility is not None:
        _note_visibility(broker, call, request.group_id, request.subscribed_topic_regex)
    if request.member_epoch <= 0:
        coordinator.submit(request.group_id, event)
        return None
    route = BeatRoute(coordinator, call.header, request)
    route.submit(event)
    return route


def _refusal(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, call: Call
) -> HeartbeatAnswer | None:
    if not broker.group_coordinator.groups.config.consumer.enabled:
        return HeartbeatAnswer(ErrorCode.UNSUPPORTED_VERSION)
    if is_denied(broker, call, Operation.READ, GROUP, request.group_id):
        return HeartbeatAnswer(GROUP_DENIED)
    for name in request.subscribed_topic_names or ():
        if is_denied(broker, call, Operation.DESCRIBE, TOPIC, name):
            return HeartbeatAnswer(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return None


def _note_visibility(broker: Broker, call: Call, group_id: str, pattern: str) -> None:
    """An expression matches only topics that the client may describe."""
    visibility, identity = broker.group_coordinator.jobs.visibility, call.identity
    allows = broker.authorizer.allows
    if visibility is not None:
        visibility.note(
            group_id, pattern, lambda name: allows(identity, Operation.DESCRIBE, TOPIC, name)
        )


def _event(
    request: ConsumerGroupHeartbeatRequest, reply: HeartbeatReply, epoch: int, call: Call
) -> ConsumerHeartbeat:
    owned, names = request.topic_partitions, request.subscribed_topic_names
    return ConsumerHeartbeat(
        reply,
        request.member_id,
        epoch,
        call.header.client_id or "",
        call.peer,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        None if names is None else tuple(names),
        request.subscribed_topic_regex,
        request.server_assignor,
        None
        if owned is None
        else frozenset(
            chain.from_iterable(zip(repeat(one.topic_id), one.partitions) for one in owned)
        ),
    )


def response(answer: HeartbeatAnswer) -> ConsumerGroupHeartbeatResponse:
    assigned = answer.assigned
    return ConsumerGroupHeartbeatResponse(
        error_code=answer.error,
        error_message=answer.message,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.interval_ms,
        assignment=None if assigned is None else _assignment(assigned),
    )


def _assignment(places: Iterable[TopicIdPartition]) -> Assignment:
    return Assignment([TopicPartitions(*topic) for topic in by_topic(places).items()])


def _is_at_rest(event: ConsumerHeartbeat, effects: Iterable[Effect]) -> bool:
    """Whether the heartbeat was answered at once, and its member has all it is to have."""
    for effect in effects:
        if isinstance(effect, Reply) and effect.call is event.call:
            return isinstance(effect.answer, HeartbeatAnswer) and effect.answer.rests
    return False


class BeatRoute(RequestRoute):
    """Serves the heartbeats of one member, which differ in their epoch only."""

    __slots__ = (
        "_assigned",
        "_coordinator",
        "_encoded_for",
        "_epoch_at",
        "_group_id",
        "_groups",
        "_is_full",
        "_member_id",
        "_said",
        "_says_nothing",
        "_settled",
        "_size",
        "_template",
    )

    def __init__(
        self,
        coordinator: GroupCoordinator,
        header: RequestHeader,
        request: ConsumerGroupHeartbeatRequest,
    ) -> None:
        super().__init__(header, request)
        self._coordinator = coordinator
        self._groups = coordinator.groups
        self._group_id, self._member_id = request.group_id, request.member_id
        self._said = request
        said = (
            request.subscribed_topic_names,
            request.subscribed_topic_regex,
            request.topic_partitions,
            request.rack_id,
            request.server_assignor,
        )
        self._says_nothing = request.rebalance_timeout_ms == -1 and not any(
            one is not None for one in said
        )
        self._is_full = False
        # The member's state when the group last handled this request, and the member was at rest.
        self._settled: Collection[TopicIdPartition] | None = None
        self._template: ResponseTemplate | None = None
        self._encoded_for: tuple[int, int] = (0, 0)
        self._assigned: Collection[TopicIdPartition] | None = None

    def varying(self, canonical: bytes) -> tuple[int, int]:
        at = self.header.body_at
        for text in (self._group_id.encode(), self._member_id.encode()):
            at += len(uvarint(len(text) + 1)) + len(text)
        self._epoch_at = at
        self._size = len(canonical)
        return at, at + INT32.size

    def submit(self, event: ConsumerHeartbeat) -> None:
        self._is_full = repeats_all(event)
        self._settled = None
        effects = self._coordinator.submit(self._group_id, event)
        if _is_at_rest(event, effects) and (found := self._rests(event.epoch)) is not None:
            self._settled = found[0].assigned

    def _rests(self, epoch: int) -> tuple[Member, int] | None:
        now_ms = self._coordinator.now_ms()
        return self._groups.rests(self._group_id, self._member_id, epoch, now_ms)

    def answer(self, frame: bytearray) -> bytes | None:
        if len(frame) != self._size:
            return None
        (epoch,) = INT32.unpack_from(frame, self._epoch_at)
        found = self._rests(epoch)
        if found is None:
            return None
        member, interval_ms = found
        if not self._says_nothing and self._settled is not member.assigned:
            return None
        if (
            self._template is None
            or self._encoded_for != (epoch, interval_ms)
            or self._assigned is not member.assigned
        ):
            self._template = self._encode(member, epoch, interval_ms)
        return self._template.answer(frame)

    def _encode(self, member: Member, epoch: int, interval_ms: int) -> ResponseTemplate:
        self._encoded_for, self._assigned = (epoch, interval_ms), member.assigned
        answer = HeartbeatAnswer(
            ErrorCode.NONE,
            None,
            member.member_id,
            epoch,
            interval_ms,
            member.assigned if self._is_full else None,
        )
        parts = response_frame(HEARTBEAT, self.header.api_version, 0, response(answer))
        return ResponseTemplate(b"".join(parts))

    def serve(self, call: Call, frame: bytearray) -> bool:
        answer = self.answer(frame)
        if answer is not None:
            call.reply_with([answer])
            return True
        if len(frame) != self._size:
            return False
        (epoch,) = INT32.unpack_from(frame, self._epoch_at)
        if epoch <= 0:
            return False  # it joins, or leaves
        self.submit(_event(self._said, HeartbeatReply(call), epoch, call))
        return True
