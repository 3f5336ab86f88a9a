"""A client's connection to the router: its parts, and how they work together.

    transport    the client's socket: whether it is read from, how it is closed
    replies      the order of replies, and what each worker owes
    workers      the connections to the workers
    requests     requests on their way to the workers

Nothing is buffered without bound: the client is not read from while a worker's socket is full,
while it does not read its own replies, or while it has too many unanswered requests. Request bytes
that are kept count against the memory that all clients share (broker/net/frame_memory.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import cast

import msgspec

from moldau.broker.logging_setup import LimitedLog
from moldau.broker.net.peer import identify
from moldau.broker.private.table import PREAMBLE
from moldau.broker.security.identity import NEVER, Identity, Role
from moldau.broker.settings.processes import Listener
from moldau.broker.wire.advertised import software_of
from moldau.broker.wire.frame import read_request_header
from moldau.broker.wire.framing import InvalidFrameSize
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.primitives import MalformedMessage
from moldau.router.login import ClientLogin
from moldau.router.reply_queue import ReplyQueue, WorkerReplies
from moldau.router.request_forwarder import FAULTS, RequestForwarder
from moldau.router.state import RouterState
from moldau.router.transport import PausableTransport, Pause
from moldau.router.worker_connections import WorkerConnection, WorkerConnections

logger = logging.getLogger("moldau.router")
limited = LimitedLog(logger)

HALF_SENT = "half_sent"  # why a client was closed, as the metrics name it
READ_AT_ONCE = 256 << 10  # bytes, at most


class ClientConnection(asyncio.Protocol):
    __slots__ = (
        "_awaits_room",
        "_clients",
        "_forwarder",
        "_is_draining",
        "_memory",
        "_session_timer",
        "_state",
        "_turn_is_due",
        "_unfinished",
        "_was_active",
        "identity",
        "is_closed",
        "last_active",
        "listener",
        "replies",
        "requests",
        "transport",
        "workers",
    )

    def __init__(
        self, state: RouterState, clients: set[ClientConnection], listener: Listener | None
    ) -> None:
        """`listener` is where the client came in; None on the unix socket."""
        self.listener = listener
        self._state = state
        self._clients = clients
        self.identity = Identity()
        self.transport = PausableTransport()
        self.replies = ReplyQueue(self.transport)
        self.workers = WorkerConnections(self, self.replies, state)
        name = "" if listener is None else listener.name
        self._forwarder = RequestForwarder(state, self.workers, self.replies, name)
        self.requests: RequestForwarder | ClientLogin = self._forwarder
        self._session_timer: asyncio.TimerHandle | None = None
        self.is_closed = False
        self.last_active = 0.0  # the last time `is_idle` found it active
        self._was_active = True  # since then
        self._is_draining = False
        self._memory = 0  # counted bytes of requests that no worker has yet
        self._unfinished = 0, 0  # bytes of the request that has not arrived completely
        self._awaits_room = False
        self._turn_is_due = False  # its requests continue in the next turn of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport.attach(transport)
        self._clients.add(self)
        identity = identify(transport, self.listener)
        if identity is None:
            self.abort()
            return
        self.identity = identity
        if self.listener is not None and not self._state.limiter.admit(
            self, transport, identity.host, self.listener
        ):
            self._leave()
            return
        if self.listener is None:
            self._forwarder.private = self._private
        else:
            if self._state.has_telemetry:
                self._forwarder.on_versions = self._know_software
            self._require_login()

    @property
    def peer(self) -> str:
        return self.identity.host

    def _know_software(self, frame: bytes) -> None:
        """Tell workers that are connected from now on the client's name and version: clients send
        ApiVersions first."""
        header = read_request_header(frame)
        if header.api is not None:
            request, _ = header.api.request_codec(header.api_version).decode(frame, header.body_at)
            software = software_of(cast("ApiVersionsRequest", request))
            self.identity = msgspec.structs.replace(self.identity, software=software)

    # --- over the unix socket ---

    def _private(self, frame: bytes) -> bytes | None:
        """Handle private requests: the operator names the user it speaks for, or asks the router
        for metrics."""
        header = read_request_header(frame)
        if header.api_key != PREAMBLE.key:
            return self._state.private_reply(frame)
        try:
            identity = PREAMBLE.read_request(frame[header.body_at :])
        except ValueError as fault:
            raise MalformedMessage(f"a preamble that cannot be read: {fault}") from None
        if identity.role is not Role.CLIENT:
            raise MalformedMessage(f"a preamble of no user: its role is {identity.role}")
        self.identity = identity
        self._forwarder.use_listener(identity.listener)
        for connection in self.workers.every:
            connection.transport.write(PREAMBLE.request(identity))
        return b""

    # --- logging in ---

    def _require_login(self) -> None:
        listener = self.listener
        if listener is None or not listener.uses_sasl:
            return
        if listener.sasl is None:
            self.abort()  # a mistake in the settings must never open a listener
            return
        self.identity = msgspec.structs.replace(self.identity, role=Role.UNAUTHENTICATED)
        self.requests = ClientLogin(self, listener.sasl, self._state)

    def _log_in_again(self) -> None:
        assert self.listener is not None
        assert self.listener.sasl is not None
        received = self._forwarder.take_kept()
        self.requests = ClientLogin(self, self.listener.sasl, self._state, received)
        self.go_on()

    def logged_in(self, identity: Identity, rest: bytes) -> None:
        """The client has logged in, for the first time or again; `rest` was received after the
        login."""
        self.identity = identity
        self._state.limiter.authenticated(self)
        for connection in self.workers.every:
            connection.transport.write(PREAMBLE.request(identity))
        self._end_session_at(identity.expires_at)
        self._forwarder.resume_after_login()
        self.requests = self._forwarder
        self._state.loop.call_soon(self._go_on_after_login, rest)

    def _go_on_after_login(self, rest: bytes) -> None:
        """This runs outside the login's own code, which has ended with it."""
        if not self.is_closed:
            self.data_received(rest) if rest else self._update_reading()

    def _end_session_at(self, expires_at: int) -> None:
        if self._session_timer is not None:
            self._session_timer.cancel()
            self._session_timer = None
        if expires_at != NEVER:
            left = expires_at / 1000 - time.time()
            self._session_timer = self._state.loop.call_later(
                max(left, 0), self._forwarder.end_session
            )

    def write(self, frame: bytes) -> None:
        self.transport.write(frame)

    # --- requests ---

    def data_received(self, data: bytes) -> None:
        self._was_active = True
        try:
            if self.requests.receive(data) or self._memory:
                self._update_reading()
        except FAULTS as fault:
            self._reject(fault)

    def go_on(self) -> None:
        """Forward kept requests after a change. A client that does not read is left out: the
        router's own replies to it would pile up."""
        if self.requests.kept and not self.transport.is_write_paused:
            try:
                self.requests.go_on()
            except FAULTS as fault:
                self._reject(fault)
        self._update_reading()

    def _update_reading(self) -> None:
        requests = self.requests
        if requests.hands_over:
            self._log_in_again()
            return
        if requests.kept or requests.is_inside_request or self._memory:
            self._count_memory()
            if self.is_closed:
                return
        if requests.may_read:
            self.transport.resume(Pause.REQUESTS_WAIT)
        else:
            self.transport.pause(Pause.REQUESTS_WAIT)
            if requests.yields and not self._turn_is_due:
                self._turn_is_due = True
                self._state.loop.call_soon(self._next_turn)

    def _count_memory(self) -> None:
        requests, before = self.requests, self._unfinished
        self._memory, self._unfinished = requests.memory, requests.unfinished
        have, size = self._unfinished
        frames, now = self._state.frames, self._state.loop.time()
        if not (self._memory or size):
            self._awaits_room = False
            frames.release(self)
            self.transport.resume(Pause.MEMORY_IS_SHORT)
            return
        is_new = size != before[1] or have < before[0]
        frames.hold(self, self._memory, size, have, now, is_new=is_new)
        if not size or self._awaits_room or self.is_closed:
            return
        # It counts from now on, as it may arrive at any time.
        self._memory += min(size - have, READ_AT_ONCE)
        if not frames.ask(self, self._memory, now):
            self._awaits_room = True
            self.transport.pause(Pause.MEMORY_IS_SHORT)

    @property
    def is_receiving(self) -> bool:
        return self.transport.is_reading or self.transport.is_write_paused

    def room_found(self) -> None:
        self._awaits_room = False
        self.transport.resume(Pause.MEMORY_IS_SHORT)

    def give_way(self) -> None:
        limited.warning(
            HALF_SENT,
            "closing %s: memory for requests that have not arrived whole is short, and it has sent "
            "%d bytes of one; if that happens to clients that behave, raise --inflight-bytes",
            self.peer,
            self._unfinished[0],
        )
        self._state.limiter.unreadable(HALF_SENT)
        self.abort()

    def _next_turn(self) -> None:
        self._turn_is_due = self.requests.yields = False
        self.go_on()

    def _reject(self, fault: Exception) -> None:
        if isinstance(fault, InvalidFrameSize):  # anybody who can connect can send that
            limited.warning(fault.kind, "closing %s: %s", self.peer, fault)
            self._state.limiter.unreadable(fault.reason)
        else:
            limited.warning("malformed", "closing %s: %s", self.peer, fault)
        self.close()

    # --- replies ---

    def receive_replies(self, replies: WorkerReplies, data: bytes) -> None:
        self.replies.receive(replies, data)
        self._was_active = True
        # Otherwise no request waits for this reply.
        if not self.transport.is_reading or self._is_draining or self.requests.kept:
            self._replies_advanced()

    def _replies_advanced(self) -> None:
        if self._is_draining and not self.replies:
            self.close()
        else:
            self.go_on()

    # --- back-pressure ---

    def block(self, connection: WorkerConnection) -> None:
        self.workers.blocked.add(connection)
        self.transport.pause(Pause.WORKER_IS_BLOCKED)

    def unblock(self, connection: WorkerConnection) -> None:
        self.workers.blocked.discard(connection)
        if not self.workers.blocked:
            self.transport.resume(Pause.WORKER_IS_BLOCKED)
            if self._memory:
                self._state.frames.resumed(self, self._state.loop.time())
            self.go_on()

    def pause_writing(self) -> None:
        self.transport.is_write_paused = True
        self.transport.pause(Pause.CLIENT_IS_SLOW)
        for connection in self.workers.every:
            connection.transport.pause(Pause.CLIENT_IS_SLOW)

    def resume_writing(self) -> None:
        self.transport.is_write_paused = False
        self.transport.resume(Pause.CLIENT_IS_SLOW)
        for connection in self.workers.every:
            connection.transport.resume(Pause.CLIENT_IS_SLOW)
        self.go_on()

    # --- workers that die ---

    def worker_unreachable(self, connection: WorkerConnection) -> None:
        """Send everything to another worker. It answers NOT_COORDINATOR to requests that only the
        unreachable worker could serve."""
        self._state.workers.unreachable(connection.worker)
        if self.is_closed or not self.workers.redirect(connection):
            self.worker_lost(connection)

    def worker_lost(self, connection: WorkerConnection) -> None:
        """Give up the replies that the worker owes."""
        self._state.connections.discard(connection)
        self.workers.lost(connection)
        if self.is_closed:
            return
        owed = connection.replies.give_up()
        if None in owed or connection.sent_without_reply or self.requests.is_halfway_to(connection):
            # Clients reconnect and retry. There is no other way to report an unknown outcome.
            logger.info(
                "closing %s: worker %d left its requests unanswered", self.peer, connection.worker
            )
            self.close()
            return
        for part_of in owed:
            assert part_of is not None
            gathered, worker = part_of
            gathered.fail(worker)
        self.replies.advance()
        if not self.workers.blocked:
            self.transport.resume(Pause.WORKER_IS_BLOCKED)
        self._replies_advanced()

    # --- the end ---

    def is_idle(self, now: float, idle_s: float) -> bool:
        """True if nothing was unanswered or new for `idle_s`. Activity since the last call counts
        as of now."""
        if self._was_active:
            self._was_active, self.last_active = False, now
        return not self.replies and now - self.last_active > idle_s

    def drain(self) -> None:
        """Take no further requests, and close once those begun have their replies."""
        self._is_draining = True
        self.requests.stop()
        if not self.replies:
            self.close()
        else:
            self._update_reading()

    def close(self) -> None:
        """Hang up. Bytes that are already written still reach a client that reads."""
        self.transport.close()
        self._leave()

    def abort(self) -> None:
        self.transport.abort()
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport.detach()
        self._leave()
        self._state.limiter.left(self)
        self._clients.discard(self)

    def _leave(self) -> None:
        self.is_closed = True
        self.workers.close()
        self.replies.clear()
        self.requests.stop()
        self._forwarder.stop()
        self._memory = 0
        self._state.frames.release(self)
        self._end_session_at(NEVER)
