"""A client logs in: what a connection serves before, and when it has to log in again.

    VERSIONS    ApiVersions, or SaslHandshake
    HANDSHAKE   SaslHandshake: names the mechanism
    TOKENS      SaslAuthenticate, until the client is known or has failed
    RAW         as TOKENS after SaslHandshake v0: tokens without a request around them
    DONE        everything; the connection serves requests again by itself

The states of Kafka's SaslServerAuthenticator. Any other request closes the connection. A failure is
answered with a delay (access/logins.py), in the same words for unknown users and wrong passwords.
In DONE, SaslHandshake begins a login that extends the session (KIP-368); the connection is closed
by its first request after the session's end.

A router relays logins over connections of their own (router/login.py): there, who has logged in is
all that can be asked for afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from moldau.broker.errors import ErrorCode
from moldau.broker.private.table import WHO_AM_I
from moldau.broker.security.identity import (
    NEVER,
    USER,
    Identity,
    Role,
)
from moldau.broker.security.plain import PlainConversation
from moldau.broker.security.sasl import (
    Accepted,
    Challenge,
    CheckPassword,
    Conversation,
    Rejected,
    Step,
    most_received,
)
from moldau.broker.settings.sasl import SaslSettings
from moldau.broker.wire.advertised import api_versions, software_of, unsupported_api_versions
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import LENGTH, RequestHeader, read_request_header
from moldau.broker.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from moldau.broker.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from moldau.broker.wire.primitives import MalformedMessage

if TYPE_CHECKING:
    from moldau.broker.server.call import Call
    from moldau.broker.server.connection import Connection

logger = logging.getLogger("moldau.server")

TIMEOUT_S = 10.0
MAX_REQUESTS = 32  # of one login
_RAW_HEADER = RequestHeader(ApiKey.SASL_AUTHENTICATE, 0, 0, None, APIS[ApiKey.SASL_AUTHENTICATE], 0)


class Logins(Protocol):
    """Of a listener."""

    settings: SaslSettings
    has_telemetry: bool

    def conversation(self, mechanism: str) -> Conversation: ...

    def check_password(
        self, host: str, user: str, password: str, answer: Callable[[bool, int], None]
    ) -> bool: ...

    def is_current(self, user: str, revision: int, token: str) -> bool: ...

    def session_end(self, mechanism: str, accepted: Accepted, now: int) -> int: ...

    def logged_in(self, identity: Identity) -> None: ...

    def failed(self, host: str, mechanism: str, user: str, reason: str) -> float: ...


class State(Enum):
    VERSIONS = "versions"
    HANDSHAKE = "handshake"
    TOKENS = "tokens"
    RAW = "raw"
    DONE = "done"


class Login:
    """Of one connection, for as long as it lasts. `is_relayed`: it is a router's."""

    def __init__(self, connection: Connection, logins: Logins, *, is_relayed: bool) -> None:
        self._connection = connection
        self._logins = logins
        self._is_relayed = is_relayed
        self._loop = asyncio.get_running_loop()
        self._state = State.VERSIONS
        self._requests = 0
        self._mechanism = ""
        self._conversation: Conversation | None = None
        self._is_again = False  # there is a session already
        self._timer = self._loop.call_later(TIMEOUT_S, self._too_slow)

    def closed(self) -> None:
        self._timer.cancel()
        self._conversation = None

    def _too_slow(self) -> None:
        logger.info("closing %s: it did not log in within %g s", self._connection.peer, TIMEOUT_S)
        self._connection.abort()

    def _refuse(self, reason: str) -> None:
        logger.info("closing %s: %s", self._connection.peer, reason)
        self._connection.abort()

    # --- requests ---

    def serve(self, frame: bytearray) -> None:
        """In the place of the connection's own way to serve a request."""
        self._requests += 1
        if len(frame) > self._logins.settings.max_receive_bytes or self._requests > MAX_REQUESTS:
            self._refuse("a login of too many or too large requests")
            return
        if self._state is State.RAW:
            self._receive(self._connection.take(_RAW_HEADER, len(frame)), bytes(frame))
            return
        try:
            header = read_request_header(frame)
            if header.api_key == WHO_AM_I.key and self._is_relayed:
                call = self._connection.take(header, len(frame))
                identity = self._connection.identity
                call.reply_with([WHO_AM_I.answer(identity, header.correlation_id)])
                return
            self._serve(header, frame)
        except MalformedMessage as fault:
            self._refuse(f"malformed, while it logs in: {fault}")

    def _serve(self, header: RequestHeader, frame: bytearray) -> None:
        key, state, connection = header.api_key, self._state, self._connection
        if key == ApiKey.API_VERSIONS and state is State.VERSIONS:
            call = connection.take(header, len(frame))
            if header.api is None:
                call.reply_with(unsupported_api_versions(header.correlation_id))
                return
            request = self._decode(header, frame)
            has_telemetry = self._logins.has_telemetry
            answer = api_versions(request, header.api_version, has_telemetry=has_telemetry)
            if not answer.error_code:
                self._state = State.HANDSHAKE
                if has_telemetry:
                    connection.know_software(software_of(request))
            call.reply(answer)
        elif header.api is None:
            self._refuse(f"API {key} v{header.api_version} is not served")
        elif key == ApiKey.SASL_HANDSHAKE and state in (State.VERSIONS, State.HANDSHAKE):
            request = self._decode(header, frame)
            self._begin(connection.take(header, len(frame)), request)
        elif key == ApiKey.SASL_AUTHENTICATE and state is State.TOKENS:
            request = self._decode(header, frame)
            self._receive(connection.take(header, len(frame)), bytes(request.auth_bytes))
        elif key == ApiKey.SASL_AUTHENTICATE:
            text = "SaslAuthenticate request received before SaslHandshake"
            call = connection.take(header, len(frame))
            call.reply(SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, text))
            connection.drain()
        else:
            self._refuse(f"{header.api.name} from a client that has not logged in")

    @staticmethod
    def _decode(header: RequestHeader, frame: bytearray) -> Any:
        assert header.api is not None
        request, _ = header.api.request_codec(header.api_version).decode(frame, header.body_at)
        return request

    # --- the steps of a login ---

    def _begin(self, call: Call, request: SaslHandshakeRequest) -> None:
        mechanisms = self._logins.settings.mechanisms
        if request.mechanism not in mechanisms:
            call.reply(
                SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, list(mechanisms))
            )
            self._connection.drain()
            return
        self._mechanism = request.mechanism
        if not self._is_again:
            most = most_received(request.mechanism, self._logins.settings.max_receive_bytes)
            self._connection.expect_tokens(most)
        self._conversation = self._logins.conversation(request.mechanism)
        self._state = State.TOKENS if call.header.api_version else State.RAW
        call.reply(SaslHandshakeResponse(mechanisms=list(mechanisms)))

    def begin_again(self, call: Call, request: SaslHandshakeRequest) -> None:
        """SaslHandshake in a session."""
        self._timer.cancel()
        self._timer = self._loop.call_later(TIMEOUT_S, self._too_slow)
        self._is_again = True
        self._requests = 0
        self._connection.serve_with(self.serve)
        self._begin(call, request)

    def _receive(self, call: Call, token: bytes) -> None:
        conversation = self._conversation
        assert conversation is not None
        previous = self._connection.identity.mechanism
        if self._is_again and self._mechanism != previous:
            text = (
                f"SASL mechanism '{self._mechanism}' requested by client is not supported for "
                f"re-authentication of mechanism '{previous}'"
            )
            self._go_on(call, Rejected("another mechanism", message=text))
            return
        self._go_on(call, conversation.receive(token, now_ms()))

    def _go_on(self, call: Call, step: Step) -> None:
        match step:
            case Challenge():
                self._reply(call, step.token)
            case Accepted():
                self._accept(call, step)
            case Rejected():
                self._reject(call, step)
            case CheckPassword():
                connection = self._connection
                connection.hold()
                if not self._logins.check_password(
                    connection.peer,
                    step.user,
                    step.password,
                    lambda *answer: self._checked(call, *answer),
                ):
                    self._refuse("too many passwords wait to be checked")

    def _checked(self, call: Call, is_right: bool, revision: int) -> None:
        conversation = self._conversation
        if self._connection.closing or conversation is None:
            return
        assert isinstance(conversation, PlainConversation)
        self._go_on(call, conversation.checked(is_right, revision))
        if self._state is State.DONE:
            self._connection.resume_soon()

    def _reply(self, call: Call, token: bytes, lifetime_ms: int = 0) -> None:
        if self._state is State.RAW:
            call.reply_with([LENGTH.pack(len(token)) + token])
        else:
            call.reply(SaslAuthenticateResponse(0, None, token, lifetime_ms))

    def _accept(self, call: Call, accepted: Accepted) -> None:
        identity, logins = self._connection.identity, self._logins
        principal = USER + accepted.user
        if not logins.is_current(accepted.user, accepted.revision, accepted.token_id):
            what = "the token is over" if accepted.token_id else "the password was changed"
            self._reject(call, Rejected(f"{what} meanwhile", accepted.user))
            return
        if self._is_again and principal != identity.principal:
            text = (
                "Cannot change principals during re-authentication from "
                f"User.{identity.user}: User.{accepted.user}"
            )
            self._reject(call, Rejected("another user", accepted.user, text))
            return
        now = now_ms()
        ends = logins.session_end(self._mechanism, accepted, now)
        identity = msgspec.structs.replace(
            identity,
            principal=principal,
            role=Role.CLIENT,
            mechanism=self._mechanism,
            revision=accepted.revision,
            expires_at=ends,
            token=accepted.token_id,
        )
        lifetime = 0 if ends == NEVER else max(ends - now, 0)
        self._timer.cancel()
        self._connection.identity = identity
        self._conversation = None
        self._reply(call, accepted.token, lifetime)
        self._state = State.DONE
        logins.logged_in(identity)
        if self._is_relayed:
            return  # the router knows when the session ends
        limiter = self._connection.limiter
        if limiter is not None:
            limiter.authenticated(self._connection)
        self._connection.serve_with(None)
        if ends != NEVER:
            self._timer = self._loop.call_later(lifetime / 1000, self._end)

    def _reject(self, call: Call, rejected: Rejected) -> None:
        connection = self._connection
        delay = self._logins.failed(
            connection.peer, self._mechanism, rejected.user or "", rejected.reason
        )
        which = "re-authentication" if self._is_again else "authentication"
        text = rejected.message or (
            f"Authentication failed during {which} due to invalid credentials with SASL mechanism "
            f"{self._mechanism}"
        )
        connection.hold()
        self._timer.cancel()
        self._timer = self._loop.call_later(delay, self._fail, call, text)

    def _fail(self, call: Call, text: str) -> None:
        if self._state is State.RAW:
            self._connection.abort()
        elif not self._connection.closing:
            call.reply(SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, text))
            self._connection.drain()

    # --- the end of a session ---

    def _end(self) -> None:
        self._connection.serve_with(self._serve_after_end)

    def _serve_after_end(self, frame: bytearray) -> None:
        """The first request after the session's end: a client may still log in again."""
        try:
            header = read_request_header(frame)
            if header.api_key == ApiKey.SASL_HANDSHAKE and header.api is not None:
                request = self._decode(header, frame)
                self.begin_again(self._connection.take(header, len(frame)), request)
                return
        except MalformedMessage:
            pass
        self._refuse("its session has ended, and it did not log in again")


def now_ms() -> int:
    return time.time_ns() // 1_000_000
