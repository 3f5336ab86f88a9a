"""A client logs in: it takes the place of the `RequestForwarder` until the client is known.

The router answers ApiVersions and SaslHandshake itself, as the mechanisms are configuration, and
relays what follows to one worker (`login_relay.py`), which has the users. Nothing else is taken
meanwhile. The states are those of a worker (broker/server/login.py). Who has logged in is in the
preamble of all connections to workers that are opened for this client.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Protocol

import msgspec

from moldau.broker.errors import ErrorCode
from moldau.broker.security.identity import Identity, Role
from moldau.broker.security.sasl import most_received
from moldau.broker.settings.sasl import SaslSettings
from moldau.broker.wire.advertised import api_versions, software_of, unsupported_api_versions
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import (
    LENGTH_SIZE,
    RequestHeader,
    read_request_header,
    read_response,
    request_frame,
    response_frame,
)
from moldau.broker.wire.frame_reader import frame_size
from moldau.broker.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from moldau.broker.wire.messages.sasl_handshake import SaslHandshakeResponse
from moldau.broker.wire.schema import Message
from moldau.router.login_relay import LoginRelay, framed
from moldau.router.request_forwarder import CannotForward
from moldau.router.state import RouterState
from moldau.router.worker_connection import WorkerConnection

TIMEOUT_S = 10.0
MAX_REQUESTS = 32  # of one login
MIN_TOKEN = 1  # bytes
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


class Step(Enum):
    VERSIONS = "versions"
    HANDSHAKE = "handshake"
    TOKENS = "tokens"
    RAW = "raw"
    OVER = "over"


class ClientLogin:
    """A login. `received` begins with the SaslHandshake of a client that logs in again."""

    __slots__ = (
        "_client",
        "_is_again",
        "_mechanism",
        "_relay",
        "_request",
        "_requests",
        "_settings",
        "_state",
        "_step",
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
        self._settings = settings
        self._state = state
        self._is_again = client.identity.role is Role.CLIENT
        self._step = Step.HANDSHAKE if self._is_again else Step.VERSIONS
        self._requests = 0
        self._mechanism = ""
        self._relay: LoginRelay | None = None
        self._request: RequestHeader | None = None  # that a worker is about to answer
        self._timer = state.loop.call_later(TIMEOUT_S, client.abort)
        self.kept = bytearray(received)
        self.private = None
        self.yields = self.hands_over = False

    # --- as a RequestForwarder ---

    @property
    def may_read(self) -> bool:
        return self._request is None and self._step is not Step.OVER

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
        self._step = Step.OVER
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
            most = most_received(self._mechanism, self._settings.max_receive_bytes)
            size = frame_size(self.kept, 0, MIN_TOKEN, most)
            end = LENGTH_SIZE + size
            if len(self.kept) < end:
                return
            frame = bytes(self.kept[LENGTH_SIZE:end])
            del self.kept[:end]
            self._requests += 1
            if self._requests > MAX_REQUESTS:
                raise CannotForward("a login of too many requests")
            self._serve(frame)

    # --- requests ---

    def _serve(self, frame: bytes) -> None:
        if self._step is Step.RAW:
            request = SaslAuthenticateRequest(frame)
            whole = request_frame(_AUTHENTICATE, 0, 0, None, request)
            self._send(read_request_header(whole[LENGTH_SIZE:]), whole)
            return
        header = read_request_header(frame)
        key, step = header.api_key, self._step
        if key == ApiKey.API_VERSIONS and step is Step.VERSIONS:
            self._answer_versions(header, frame)
        elif header.api is None:
            raise CannotForward(f"API {key} v{header.api_version} is not served")
        elif key == ApiKey.SASL_HANDSHAKE and step in (Step.VERSIONS, Step.HANDSHAKE):
            self._answer_handshake(header, _decoded(header, frame).mechanism)
        elif key == ApiKey.SASL_AUTHENTICATE and step is Step.TOKENS:
            _decoded(header, frame)
            self._send(header, framed(frame))
        elif key == ApiKey.SASL_AUTHENTICATE:
            text = "SaslAuthenticate request received before SaslHandshake"
            self._reply(header, SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, text))
            self._client.close()
        else:
            raise CannotForward(f"{header.api.name} from a client that has not logged in")

    def _reply(self, header: RequestHeader, message: Message) -> None:
        assert header.api is not None
        parts = response_frame(header.api, header.api_version, header.correlation_id, message)
        self._client.write(b"".join(parts))

    def _answer_versions(self, header: RequestHeader, frame: bytes) -> None:
        if header.api is None:
            self._client.write(b"".join(unsupported_api_versions(header.correlation_id)))
            return
        request, has_telemetry = _decoded(header, frame), self._state.has_telemetry
        answer = api_versions(request, header.api_version, has_telemetry=has_telemetry)
        if not answer.error_code:
            self._step = Step.HANDSHAKE
            if has_telemetry:
                self._client.identity = msgspec.structs.replace(
                    self._client.identity, software=software_of(request)
                )
        self._reply(header, answer)

    def _answer_handshake(self, header: RequestHeader, mechanism: str) -> None:
        mechanisms = list(self._settings.mechanisms)
        if mechanism not in mechanisms:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            self._reply(header, SaslHandshakeResponse(code, mechanisms))
            self._client.close()
            return
        self._mechanism = mechanism
        self._step = Step.TOKENS if header.api_version else Step.RAW
        self._reply(header, SaslHandshakeResponse(mechanisms=mechanisms))

    # --- the worker ---

    def _send(self, header: RequestHeader, request: bytes) -> None:
        previous = self._client.identity.mechanism
        if self._is_again and self._mechanism != previous:
            text = (
                f"SASL mechanism '{self._mechanism}' requested by client is not supported for "
                f"re-authentication of mechanism '{previous}'"
            )
            self._fail(header, text)
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
            self._relay = LoginRelay(self, stranger, self._mechanism)
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
        if reply and self._step is Step.TOKENS:
            self._client.write(reply)
        self._client.close()

    def _pass_on(self, reply: bytes) -> None:
        if self._step is Step.RAW:
            _, message = read_response(_AUTHENTICATE, 0, reply[LENGTH_SIZE:])
            token = bytes(message.auth_bytes)  # type: ignore[attr-defined]
            self._client.write(framed(token))
        else:
            self._client.write(reply)

    def _finish(self, header: RequestHeader, reply: bytes, identity: Identity) -> None:
        before = self._client.identity
        if self._is_again and identity.principal != before.principal:
            text = (
                "Cannot change principals during re-authentication from "
                f"User.{before.user}: User.{identity.user}"
            )
            self._fail(header, text)
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
        if self._step is Step.TOKENS:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            self._reply(header, SaslAuthenticateResponse(code, text))
        self._client.close()


def _decoded(header: RequestHeader, frame: bytes) -> Any:
    assert header.api is not None
    request, _ = header.api.request_codec(header.api_version).decode(frame, header.body_at)
    return request
