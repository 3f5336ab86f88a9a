"""What a client may send until it has logged in: the same for workers and routers. No I/O.

    VERSIONS    ApiVersions or SaslHandshake
    HANDSHAKE   SaslHandshake, which names the mechanism
    TOKENS      SaslAuthenticate, until the client is known or has failed
    RAW         like TOKENS, after SaslHandshake v0: tokens without a request around them
    DONE        nothing: the login is over

These are the states of Kafka's SaslServerAuthenticator. Any other request closes the connection.
A client that has a session may log in again to extend it (KIP-368); it begins at HANDSHAKE, and
changes neither its mechanism nor its principal.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from moldau.broker.errors import ErrorCode
from moldau.broker.security.identity import Identity
from moldau.broker.security.sasl import most_received
from moldau.broker.settings.sasl import SaslSettings
from moldau.broker.wire.advertised import api_versions, software_of
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import RequestHeader, read_request_header
from moldau.broker.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from moldau.broker.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from moldau.broker.wire.schema import Message

TIMEOUT_S = 10.0  # for the whole login
MAX_REQUESTS = 32  # of one login
MIN_TOKEN = 1  # bytes of a frame: SaslHandshake v0 is followed by tokens

_RAW_HEADER = RequestHeader(ApiKey.SASL_AUTHENTICATE, 0, 0, None, APIS[ApiKey.SASL_AUTHENTICATE], 0)


class LoginState(Enum):
    VERSIONS = "versions"
    HANDSHAKE = "handshake"
    TOKENS = "tokens"
    RAW = "raw"
    DONE = "done"


class LoginRefused(Exception):
    """Close the connection without a reply; the text is for the log."""


class Reply(NamedTuple):
    """Send this reply. `message` is None when this version of ApiVersions is not served."""

    header: RequestHeader
    message: Message | None
    closes: bool = False  # the connection, once the reply is sent
    software: tuple[str, str] | None = None  # the client's name and version, if it sent them


class MechanismChosen(NamedTuple):
    """Begin a conversation with `LoginSteps.mechanism`, and send this reply."""

    header: RequestHeader
    message: Message


class Token(NamedTuple):
    """Pass this to the conversation."""

    header: RequestHeader
    token: bytes


Step = Reply | MechanismChosen | Token


class LoginSteps:
    """The login of one connection, and those that extend its session."""

    __slots__ = ("_has_telemetry", "_requests", "_settings", "is_again", "mechanism", "state")

    def __init__(self, settings: SaslSettings, *, has_telemetry: bool) -> None:
        self._settings = settings
        self._has_telemetry = has_telemetry
        self._requests = 0
        self.mechanism = ""
        self.state = LoginState.VERSIONS
        self.is_again = False  # there is a session already

    def begin_again(self) -> None:
        self._requests = 0
        self.is_again = True
        self.state = LoginState.HANDSHAKE

    @property
    def max_frame(self) -> int:
        """The largest frame that is accepted now."""
        return most_received(self.mechanism, self._settings.max_receive_bytes)

    def count(self, frame: bytes | bytearray) -> None:
        """Raises LoginRefused."""
        self._requests += 1
        if self._requests > MAX_REQUESTS or len(frame) > self._settings.max_receive_bytes:
            raise LoginRefused("a login of too many or too large requests")

    def receive(self, frame: bytes | bytearray) -> Step:
        """A frame of the client, without its length. Raises LoginRefused, MalformedMessage."""
        self.count(frame)
        state = self.state
        if state is LoginState.RAW:
            return Token(_RAW_HEADER, bytes(frame))
        header = read_request_header(frame)
        key = header.api_key
        if key == ApiKey.API_VERSIONS and state is LoginState.VERSIONS:
            return self._versions(header, frame)
        if header.api is None:
            raise LoginRefused(f"API {key} v{header.api_version} is not served")
        if key == ApiKey.SASL_HANDSHAKE and state in (LoginState.VERSIONS, LoginState.HANDSHAKE):
            return self.handshake(header, decoded(header, frame))
        if key == ApiKey.SASL_AUTHENTICATE and state is LoginState.TOKENS:
            return Token(header, bytes(decoded(header, frame).auth_bytes))
        if key == ApiKey.SASL_AUTHENTICATE:
            text = "SaslAuthenticate request received before SaslHandshake"
            refusal = SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, text)
            return Reply(header, refusal, closes=True)
        raise LoginRefused(f"{header.api.name} from a client that has not logged in")

    def _versions(self, header: RequestHeader, frame: bytes | bytearray) -> Reply:
        if header.api is None:
            return Reply(header, None)
        request = decoded(header, frame)
        answer = api_versions(request, header.api_version, has_telemetry=self._has_telemetry)
        if answer.error_code:
            return Reply(header, answer)
        self.state = LoginState.HANDSHAKE
        return Reply(header, answer, software=software_of(request) if self._has_telemetry else None)

    def handshake(
        self, header: RequestHeader, request: SaslHandshakeRequest
    ) -> Reply | MechanismChosen:
        mechanisms = list(self._settings.mechanisms)
        if request.mechanism not in mechanisms:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            return Reply(header, SaslHandshakeResponse(code, mechanisms), closes=True)
        self.mechanism = request.mechanism
        self.state = LoginState.TOKENS if header.api_version else LoginState.RAW
        return MechanismChosen(header, SaslHandshakeResponse(mechanisms=mechanisms))

    # --- logging in again ---

    def mechanism_fault(self, session: Identity) -> str | None:
        """Kafka's message, if the client may not change its mechanism to this one."""
        if not self.is_again or self.mechanism == session.mechanism:
            return None
        return (
            f"SASL mechanism '{self.mechanism}' requested by client is not supported for "
            f"re-authentication of mechanism '{session.mechanism}'"
        )

    def principal_fault(self, session: Identity, user: str) -> str | None:
        """Kafka's message, if the client may not become this user."""
        if not self.is_again or user == session.user:
            return None
        return (
            "Cannot change principals during re-authentication from "
            f"User.{session.user}: User.{user}"
        )


def decoded(header: RequestHeader, frame: bytes | bytearray) -> Any:
    assert header.api is not None
    request, _ = header.api.request_codec(header.api_version).decode(frame, header.body_at)
    return request
