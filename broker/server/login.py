"""The login of a client: what its connection serves until it is known, and when it has to log in
again.

The requests and their order are in security/login_steps.py. A failure is answered with a delay
(access/logins.py), in the same words for unknown users and wrong passwords. After the end of its
session a client may still log in again; any other request closes the connection.

A router relays logins over connections of their own (router/login.py). On such a connection only
WHO_AM_I is served after the login.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from moldau.broker.errors import ErrorCode
from moldau.broker.private.table import WHO_AM_I
from moldau.broker.security.identity import (
    NEVER,
    USER,
    Identity,
    Role,
)
from moldau.broker.security.login_steps import (
    TIMEOUT_S,
    LoginRefused,
    LoginState,
    LoginSteps,
    MechanismChosen,
    Reply,
    Token,
    decoded,
)
from moldau.broker.security.plain import PlainConversation
from moldau.broker.security.sasl import (
    Accepted,
    Challenge,
    CheckPassword,
    Conversation,
    Rejected,
    Step,
)
from moldau.broker.settings.sasl import SaslSettings
from moldau.broker.wire.advertised import unsupported_api_versions
from moldau.broker.wire.apis import ApiKey
from moldau.broker.wire.frame import LENGTH, read_request_header
from moldau.broker.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from moldau.broker.wire.messages.sasl_handshake import SaslHandshakeRequest
from moldau.broker.wire.primitives import MalformedMessage

if TYPE_CHECKING:
    from moldau.broker.server.call import Call
    from moldau.broker.server.connection import Connection

logger = logging.getLogger("moldau.server")


class Logins(Protocol):
    """The logins of a listener."""

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


class Login:
    """The login of one connection, for as long as it lasts. `is_relayed`: it is a router's."""

    def __init__(self, connection: Connection, logins: Logins, *, is_relayed: bool) -> None:
        self._connection = connection
        self._logins = logins
        self._is_relayed = is_relayed
        self._loop = asyncio.get_running_loop()
        self._steps = LoginSteps(logins.settings, has_telemetry=logins.has_telemetry)
        self._conversation: Conversation | None = None
        self._timer = self._loop.call_later(TIMEOUT_S, self._too_slow)
        connection.expect_tokens(self._steps.max_frame)

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
        """Serve a request in place of the connection."""
        try:
            if self._is_relayed and self._answers_who(frame):
                return
            step = self._steps.receive(frame)
        except LoginRefused as refusal:
            self._refuse(str(refusal))
            return
        except MalformedMessage as fault:
            self._refuse(f"malformed, while it logs in: {fault}")
            return
        connection = self._connection
        call = connection.take(step.header, len(frame))
        match step:
            case Token():
                self._receive(call, step.token)
            case MechanismChosen():
                self._begin(call, step)
            case Reply():
                if step.software is not None:
                    connection.know_software(step.software)
                self._send(call, step)

    def _answers_who(self, frame: bytearray) -> bool:
        if self._steps.state is LoginState.RAW:
            return False
        header = read_request_header(frame)
        if header.api_key != WHO_AM_I.key:
            return False
        self._steps.count(frame)
        call = self._connection.take(header, len(frame))
        call.reply_with([WHO_AM_I.answer(self._connection.identity, header.correlation_id)])
        return True

    def _send(self, call: Call, reply: Reply) -> None:
        if reply.message is None:
            call.reply_with(unsupported_api_versions(reply.header.correlation_id))
        else:
            call.reply(reply.message)
        if reply.closes:
            self._connection.drain()

    # --- the steps of a login ---

    def _begin(self, call: Call, chosen: MechanismChosen) -> None:
        if not self._steps.is_again:
            self._connection.expect_tokens(self._steps.max_frame)
        self._conversation = self._logins.conversation(self._steps.mechanism)
        call.reply(chosen.message)

    def begin_again(self, call: Call, request: SaslHandshakeRequest) -> None:
        """SaslHandshake in a session."""
        self._timer.cancel()
        self._timer = self._loop.call_later(TIMEOUT_S, self._too_slow)
        self._steps.begin_again()
        self._connection.serve_with(self.serve)
        step = self._steps.handshake(call.header, request)
        if isinstance(step, MechanismChosen):
            self._begin(call, step)
        else:
            self._send(call, step)

    def _receive(self, call: Call, token: bytes) -> None:
        conversation = self._conversation
        assert conversation is not None
        fault = self._steps.mechanism_fault(self._connection.identity)
        if fault is not None:
            self._reject(call, Rejected("another mechanism", message=fault))
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
        if self._steps.state is LoginState.DONE:
            self._connection.resume_soon()

    def _reply(self, call: Call, token: bytes, lifetime_ms: int = 0) -> None:
        if self._steps.state is LoginState.RAW:
            call.reply_with([LENGTH.pack(len(token)) + token])
        else:
            call.reply(SaslAuthenticateResponse(0, None, token, lifetime_ms))

    def _accept(self, call: Call, accepted: Accepted) -> None:
        identity, logins = self._connection.identity, self._logins
        if not logins.is_current(accepted.user, accepted.revision, accepted.token_id):
            what = "the token is over" if accepted.token_id else "the password was changed"
            self._reject(call, Rejected(f"{what} meanwhile", accepted.user))
            return
        fault = self._steps.principal_fault(identity, accepted.user)
        if fault is not None:
            self._reject(call, Rejected("another user", accepted.user, fault))
            return
        now = now_ms()
        ends = logins.session_end(self._steps.mechanism, accepted, now)
        identity = msgspec.structs.replace(
            identity,
            principal=USER + accepted.user,
            role=Role.CLIENT,
            mechanism=self._steps.mechanism,
            revision=accepted.revision,
            expires_at=ends,
            token=accepted.token_id,
        )
        lifetime = 0 if ends == NEVER else max(ends - now, 0)
        self._timer.cancel()
        self._connection.identity = identity
        self._conversation = None
        self._reply(call, accepted.token, lifetime)
        self._steps.state = LoginState.DONE
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
            connection.peer, self._steps.mechanism, rejected.user or "", rejected.reason
        )
        which = "re-authentication" if self._steps.is_again else "authentication"
        text = rejected.message or (
            f"Authentication failed during {which} due to invalid credentials with SASL mechanism "
            f"{self._steps.mechanism}"
        )
        connection.hold()
        self._timer.cancel()
        self._timer = self._loop.call_later(delay, self._fail, call, text)

    def _fail(self, call: Call, text: str) -> None:
        if self._steps.state is LoginState.RAW:
            self._connection.abort()
        elif not self._connection.closing:
            call.reply(SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, text))
            self._connection.drain()

    # --- the end of a session ---

    def _end(self) -> None:
        self._connection.serve_with(self._serve_after_end)

    def _serve_after_end(self, frame: bytearray) -> None:
        """The first request after the end of the session: only a new login is accepted."""
        try:
            header = read_request_header(frame)
            if header.api_key == ApiKey.SASL_HANDSHAKE and header.api is not None:
                request = decoded(header, frame)
                self.begin_again(self._connection.take(header, len(frame)), request)
                return
        except MalformedMessage:
            pass
        self._refuse("its session has ended, and it did not log in again")


def now_ms() -> int:
    return time.time_ns() // 1_000_000
