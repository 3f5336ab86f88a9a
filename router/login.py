"""A client logs in: it takes the place of the `RequestForwarder` until the client is known.

The router answers ApiVersions and SaslHandshake itself, as the mechanisms are configuration, and
relays what follows to one worker (`LoginRelay`), which has the users. Nothing else is taken
meanwhile. The steps are those of a worker (broker/security/login_steps.py). The identity of a
client that has logged in is in the preamble of all connections to workers that are opened for it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

import msgspec

from moldau.broker.errors import ErrorCode
from moldau.broker.private.api import answer_body
from moldau.broker.private.table import PREAMBLE, WHO_AM_I
from moldau.broker.security.identity import Identity, Role
from moldau.broker.security.login_steps import (
    MIN_TOKEN,
    TIMEOUT_S,
    LoginRefused,
    LoginState,
    LoginSteps,
    MechanismChosen,
    Reply,
    Token,
)
from moldau.broker.settings.sasl import SaslSettings
from moldau.broker.wire.advertised import unsupported_api_versions
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import (
    LENGTH,
    LENGTH_SIZE,
    RequestHeader,
    read_response,
    request_frame,
    response_frame,
)
from moldau.broker.wire.framing import MIN_RESPONSE, InvalidFrameSize, frame_size
from moldau.broker.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from moldau.broker.wire.messages.sasl_handshake import SaslHandshakeRequest
from moldau.broker.wire.schema import Message
from moldau.router.request_forwarder import CannotForward
from moldau.router.state import RouterState
from moldau.router.worker_connections import WorkerConnection

logger = logging.getLogger("moldau.router")

MAX_REPLY = 1 << 20
_QUESTION = WHO_AM_I.request(None)


class Asker(Protocol):
    def answered(self, reply: bytes, identity: Identity) -> None:
        """Take the worker's reply to SaslAuthenticate (with its length), and the client's identity
        now."""

    def relay_lost(self, reply: bytes) -> None:
        """The worker has hung up; `reply` is its last one, which tells the reason, or empty."""


class LoginRelay(asyncio.Protocol):
    """One login of a client, relayed to a worker over its own connection.

    The worker knows the users; the state of the login lives in its connection, as on a direct port.
    After every token the router asks who has logged in, so that it knows when, and as whom.
    """

    def __init__(self, asker: Asker, identity: Identity, mechanism: str) -> None:
        self._asker: Asker | None = asker
        handshake = SaslHandshakeRequest(mechanism)
        self._unsent = PREAMBLE.request(identity) + request_frame(
            APIS[ApiKey.SASL_HANDSHAKE], 1, 0, None, handshake
        )
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._has_begun = False  # the handshake was answered
        self._reply = b""  # to the last token

    async def open(self, path: str) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self, path)
        except OSError as fault:
            logger.warning("a login cannot be relayed: %s", fault)
            self._lost()

    def send(self, request: bytes) -> None:
        """Send a SaslAuthenticate request, with its length."""
        if self._transport is None:
            self._unsent += request + _QUESTION
        else:
            self._transport.write(request + _QUESTION)

    def close(self) -> None:
        self._asker = None
        if self._transport is not None:
            self._transport.abort()

    # --- the connection ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        if self._asker is None:
            self._transport.abort()
            return
        self._transport.write(self._unsent)
        self._unsent = b""

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= LENGTH_SIZE and self._asker is not None:
            try:
                size = frame_size(received, 0, MIN_RESPONSE, MAX_REPLY)
            except InvalidFrameSize as fault:
                logger.critical("closing a client: a worker answered its login with %s", fault)
                self._lost()
                return
            end = LENGTH_SIZE + size
            if len(received) < end:
                return
            frame = bytes(received[:end])
            del received[:end]
            self._take(frame)

    def _take(self, frame: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
        elif not self._reply:
            self._reply = frame
        else:
            reply, self._reply = self._reply, b""
            assert self._asker is not None
            try:
                identity = WHO_AM_I.read_answer(answer_body(frame))
            except ValueError as fault:
                logger.critical("closing a client: a worker does not say who it is: %s", fault)
                self._lost()
            else:
                self._asker.answered(reply, identity)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()

    def _lost(self) -> None:
        asker = self._asker
        self.close()
        if asker is not None:
            asker.relay_lost(self._reply)


def framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


_AUTHENTICATE = APIS[ApiKey.SASL_AUTHENTICATE]


class LoggingIn(Protocol):
    """The interface of the client connection to which a login belongs."""

    identity: Identity

    def write(self, frame: bytes) -> None: ...

    def logged_in(self, identity: Identity, rest: bytes) -> None:
        """The client has logged in; `rest` was received after the login."""

    def go_on(self) -> None:
        """The next request can be served."""

    def close(self) -> None: ...

    def abort(self) -> None: ...


class ClientLogin:
    """A login. `received` begins with the SaslHandshake of a client that logs in again."""

    __slots__ = (
        "_client",
        "_relay",
        "_request",
        "_state",
        "_steps",
        "_timer",
        "hands_over",
        "kept",
        "private",
        "yields",
    )

    def __init__(
        self, client: LoggingIn, settings: SaslSettings, state: RouterState, received: bytes = b""
    ) -> None:
        self._client = client
        self._state = state
        self._steps = LoginSteps(settings, has_telemetry=state.has_telemetry)
        if client.identity.role is Role.CLIENT:
            self._steps.begin_again()
        self._relay: LoginRelay | None = None
        self._request: RequestHeader | None = None  # that a worker is about to answer
        self._timer = state.loop.call_later(TIMEOUT_S, client.abort)
        self.kept = bytearray(received)
        self.private = None
        self.yields = self.hands_over = False

    # --- as a RequestForwarder ---

    @property
    def may_read(self) -> bool:
        return self._request is None and self._steps.state is not LoginState.DONE

    @property
    def is_inside_request(self) -> bool:
        return False

    @property
    def memory(self) -> int:
        return len(self.kept)

    @property
    def unfinished(self) -> tuple[int, int]:
        return 0, 0  # its size has its own limit

    def is_halfway_to(self, connection: WorkerConnection) -> bool:
        return False

    def stop(self) -> None:
        self._steps.state = LoginState.DONE
        self._timer.cancel()
        self.kept = bytearray()
        if self._relay is not None:
            self._relay.close()

    def receive(self, data: bytes) -> bool:
        self.kept += data
        self.go_on()
        return True

    def go_on(self) -> None:
        """Process the received requests. Raises FAULTS."""
        while self.may_read and len(self.kept) >= LENGTH_SIZE:
            size = frame_size(self.kept, 0, MIN_TOKEN, self._steps.max_frame)
            end = LENGTH_SIZE + size
            if len(self.kept) < end:
                return
            frame = bytes(self.kept[LENGTH_SIZE:end])
            del self.kept[:end]
            self._serve(frame)

    # --- requests ---

    def _serve(self, frame: bytes) -> None:
        try:
            step = self._steps.receive(frame)
        except LoginRefused as refusal:
            raise CannotForward(str(refusal)) from None
        match step:
            case Token():
                if self._steps.state is LoginState.RAW:
                    request = SaslAuthenticateRequest(step.token)
                    self._send(step.header, request_frame(_AUTHENTICATE, 0, 0, None, request))
                else:
                    self._send(step.header, framed(frame))
            case MechanismChosen():
                self._reply(step.header, step.message)
            case Reply():
                self._answer(step)

    def _answer(self, reply: Reply) -> None:
        if reply.software is not None:
            self._client.identity = msgspec.structs.replace(
                self._client.identity, software=reply.software
            )
        if reply.message is None:
            parts = unsupported_api_versions(reply.header.correlation_id)
            self._client.write(b"".join(parts))
        else:
            self._reply(reply.header, reply.message)
        if reply.closes:
            self._client.close()

    def _reply(self, header: RequestHeader, message: Message) -> None:
        assert header.api is not None
        parts = response_frame(header.api, header.api_version, header.correlation_id, message)
        self._client.write(b"".join(parts))

    # --- the worker ---

    def _send(self, header: RequestHeader, request: bytes) -> None:
        fault = self._steps.mechanism_fault(self._client.identity)
        if fault is not None:
            self._fail(header, fault)
            return
        if self._relay is None:
            worker = self._state.next_for_login()
            if worker is None:
                raise CannotForward("no worker is up")
            stranger = Identity(
                host=self._client.identity.host,
                listener=self._client.identity.listener,
                role=Role.UNAUTHENTICATED,
            )
            self._relay = LoginRelay(self, stranger, self._steps.mechanism)
            self._state.spawn(self._relay.open(self._state.workers.paths[worker]))
        self._request = header
        self._relay.send(request)

    def answered(self, reply: bytes, identity: Identity) -> None:
        header, self._request = self._request, None
        if header is None:
            self._client.abort()
            return
        if identity.role is Role.CLIENT:
            self._finish(header, reply, identity)
        else:
            self._pass_on(reply)
            self._client.go_on()

    def relay_lost(self, reply: bytes) -> None:
        """The worker has died, after a failure or during one."""
        if reply and self._steps.state is LoginState.TOKENS:
            self._client.write(reply)
        self._client.close()

    def _pass_on(self, reply: bytes) -> None:
        if self._steps.state is LoginState.RAW:
            _, message = read_response(_AUTHENTICATE, 0, reply[LENGTH_SIZE:])
            token = bytes(message.auth_bytes)  # type: ignore[attr-defined]
            self._client.write(framed(token))
        else:
            self._client.write(reply)

    def _finish(self, header: RequestHeader, reply: bytes, identity: Identity) -> None:
        before = self._client.identity
        fault = self._steps.principal_fault(before, identity.user)
        if fault is not None:
            self._fail(header, fault)
            return
        self._pass_on(reply)
        rest = bytes(self.kept)
        self.stop()
        identity = msgspec.structs.replace(
            identity,
            host=before.host,
            listener=before.listener,
            port=before.port,
            software=before.software,
        )
        self._client.logged_in(identity, rest)

    def _fail(self, header: RequestHeader, text: str) -> None:
        if self._steps.state is LoginState.TOKENS:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            self._reply(header, SaslAuthenticateResponse(code, text))
        self._client.close()
