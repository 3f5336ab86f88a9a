"""A client's connection to the router: its requests, planned and sent on.

Requests go on in the pieces in which they come; what cannot go yet is kept, and the client is not
read from meanwhile. The replies, and what waits for what, are in replies.py.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from broker.wire.frame import LENGTH, read_request_header
from broker.wire.primitives import MalformedMessage
from router.gathered_reply import Gather
from router.replies import MAX_READY, MAX_UNANSWERED, SLICE_FROM, ClientReplies
from router.routing import Kind, Part, Plan, locate
from router.state import Hub
from router.unavailable import refused_reply
from router.worker_connection import Upstream
from router.worker_connections import API_AT, BEHIND_CORRELATION_ID

log = logging.getLogger("moldau.router")

SMALLEST_FRAME = 8
# Enough to plan nearly every request; what is larger is looked at again, whole.
FIRST_HEAD = 2048

FORWARDED = frozenset({Kind.LEADER, Kind.SPREAD, Kind.OWNER, Kind.ANY})


class Client(ClientReplies):
    __slots__ = ("_enough",)

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._enough = 0  # how much of what was kept is worth looking at again

    def data_received(self, data: bytes) -> None:
        self.was_active = True
        pending = self._pending
        if (
            not (pending or self._left or self._draining)
            and len(self.turns) < MAX_UNANSWERED - 1
            and self._ready_bytes <= MAX_READY
            and self._is_sent_like_before(data)
        ):
            return
        if pending:
            pending += data
            if len(pending) < self._enough or self._must_wait:
                self._set_reading()
                return
            data = bytes(pending)
            self._pending = bytearray()
        self._take(data)

    def _is_sent_like_before(self, data: bytes) -> bool:
        """The usual case, with as little work as can be: one request that goes where another went
        that began with the same bytes."""
        known = self._routes.known.get(data[API_AT : API_AT + 4])
        if known is None:
            return False
        prefix, least, upstream = known
        size = len(data) - 4
        if (
            not least <= size <= self._hub.max_request_bytes
            or LENGTH.unpack_from(data)[0] != size
            or not data.startswith(prefix, BEHIND_CORRELATION_ID)
        ):
            return False
        self.turns.append(upstream)
        upstream.expected.append(None)
        upstream.send(data)
        return True

    def _take(self, data: bytes) -> None:
        """Send on what came, whole requests and pieces; keep what cannot be sent yet."""
        at = start = 0  # what lies between them goes to `target` in one piece
        have = len(data)
        target: Upstream | None = None
        turns, known = self.turns, self._routes.known
        self._enough = 0
        if self._left:
            at = min(self._left, have)
            self._left -= at
            target = self._stream
        may_go_on = not (self._draining or self._must_wait)
        try:
            while at < have and may_go_on:
                size = self._size_at(data, at, have)
                if size is None:
                    break
                end = at + 4 + size
                upstream: Upstream | None
                route = known.get(data[at + API_AT : at + API_AT + 4])
                if (
                    route is not None
                    and route[1] <= size
                    and data.startswith(route[0], at + BEHIND_CORRELATION_ID)
                ):
                    upstream = route[2]
                    turns.append(upstream)
                    upstream.expected.append(None)
                    may_go_on = len(turns) < MAX_UNANSWERED
                else:
                    planned, depends = self._plan_at(data, at + 4, min(end, have), size)
                    kind = planned.kind
                    if kind is Kind.MORE:
                        self._enough = min(end - at, max(2 * (have - at), 64))
                        break
                    if kind is Kind.SPREAD and not self._can_spread():
                        break
                    if kind not in FORWARDED:
                        # First what stands before it: workers see requests in the client's order.
                        _send(target, data, start, at)
                        target = None
                        self._serve(planned, data[at + 4 : end])
                        at = start = end
                        may_go_on = not self._must_wait
                        continue
                    upstream = self._route(planned, data, at, end)
                    if upstream is not None and depends:
                        head = data[at + 4 : at + 4 + depends]
                        self._routes.remember(planned, depends, head, upstream)
                    may_go_on = not self._must_wait
                if upstream is not target:
                    _send(target, data, start, at)
                    target, start = upstream, at
                at = min(end, have)
                if upstream is None:
                    start = at
                elif end > have:
                    self._stream, self._left = upstream, end - have
        except MalformedMessage as fault:
            log.warning("closing %s: %s", self.peer, fault)
            self.close()
            return
        _send(target, data, start, at)
        if self.is_closed:
            return
        if at < have and not self._draining:
            self._pending = bytearray(memoryview(data)[at:])
        if at < have or self._blocked or len(turns) >= MAX_UNANSWERED:
            self._set_reading()

    def _go_on(self) -> None:
        """Look at what was kept, if it can go now."""
        if len(self._pending) >= self._enough and not self._must_wait and not self._blocked:
            data = bytes(self._pending)
            self._pending = bytearray()
            self._take(data)

    def _size_at(self, data: bytes, at: int, have: int) -> int | None:
        """The size of the request that begins there; None: that has not come yet."""
        if have - at < 4:
            self._enough = 4
            return None
        size: int = LENGTH.unpack_from(data, at)[0]
        if not SMALLEST_FRAME <= size <= self._hub.max_request_bytes:
            most = self._hub.max_request_bytes
            text = f"a frame of {size} bytes (at most {most}; is it a Kafka client?)"
            raise MalformedMessage(text)
        return size

    def _plan_at(self, data: bytes, at: int, end: int, size: int) -> tuple[Plan, int]:
        context = self._hub.context
        if end - at == size:
            return locate(data[at:end], size, context)
        located = locate(data[at : min(end, at + FIRST_HEAD)], size, context)
        if located[0].kind is Kind.MORE and end - at > FIRST_HEAD:
            located = locate(data[at:end], size, context)
        return located

    def _can_spread(self) -> bool:
        """May a Produce to several leaders go? From the first one on all go to one worker."""
        if self.turns and not self._routes.has_home:
            self._waits_for_all = True
            return False
        return True

    def _route(self, planned: Plan, data: bytes, at: int, end: int) -> Upstream | None:
        """Whom to send a request to, its turn taken; None: it was dealt with here."""
        kind, routes = planned.kind, self._routes
        upstream: Upstream | None
        if kind is Kind.OWNER:
            upstream = routes.owner(planned.worker)
            if upstream is None:
                self._refuse(data, at, end)
                return None
        elif kind is Kind.ANY:
            upstream = routes.any()
        else:
            upstream = routes.leader(planned)
        if upstream is None:
            log.warning("closing %s: no worker is there", self.peer)
            self.close()
            return None
        if planned.answered:
            self.turns.append(upstream)
            upstream.expected.append(None)
        else:
            upstream.is_silent = True
        return upstream

    def _serve(self, planned: Plan, frame: bytes) -> None:
        """Answer a request here, or gather its answer from several workers."""
        hub = self._hub
        if planned.kind is Kind.REFUSED:
            key, version = int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])
            raise MalformedMessage(f"API {key} v{version} is not served")
        if planned.kind is Kind.LOCAL:
            self._reply(hub.answers.reply(frame))
            return
        header = read_request_header(frame)
        assert header.api is not None
        parts: Sequence[Part] = planned.parts
        if planned.kind is Kind.EVERY:
            whole = LENGTH.pack(len(frame)) + frame
            parts = [Part(worker, whole, None) for worker in range(len(hub.workers))]
        gather = Gather(header.api, header.api_version, header.correlation_id, planned.keys, parts)
        self.turns.append(gather)
        for part in parts:
            upstream = self._routes.owner(part.worker)
            if upstream is None:
                gather.fail(part.worker)
                continue
            upstream.expected.append((gather, part.worker))
            upstream.send(part.frame)
        self.advance()

    def _refuse(self, data: bytes, at: int, end: int) -> None:
        """The coordinator is away: say so, or hang up where the protocol has no way to."""
        reply = refused_reply(data[at + 4 : end]) if end <= len(data) else None
        if reply is None:
            self.close()
        else:
            self._reply(reply)


def _send(upstream: Upstream | None, data: bytes, start: int, end: int) -> None:
    """Send a piece of what the client sent on to a worker."""
    if upstream is None or start == end:
        return
    if end - start == len(data):
        upstream.send(data)
    elif end - start < SLICE_FROM:
        upstream.send(data[start:end])
    else:
        upstream.send(memoryview(data)[start:end])
