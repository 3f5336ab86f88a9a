"""The logins of listeners: mechanisms, credentials, lengths of sessions, delays after failures."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from moldau.broker.access.passwords import Answer, Passwords
from moldau.broker.access.signing_keys import KeySet
from moldau.broker.access.tokens import Tokens
from moldau.broker.access.users import Users
from moldau.broker.security.backoff import FailureDelays
from moldau.broker.security.identity import NEVER, Identity
from moldau.broker.security.oauthbearer import OAuthBearerConversation, TokenRules
from moldau.broker.security.plain import PlainConversation
from moldau.broker.security.sasl import Accepted, Conversation, Mechanism
from moldau.broker.security.scram import ScramConversation
from moldau.broker.settings.processes import Listener
from moldau.broker.settings.sasl import SaslSettings, TokenSettings

logger = logging.getLogger("moldau.access")

# Identity and mechanism; address, mechanism, user and reason of a failure.
OnLogin = Callable[[Identity, str], None]
OnFailure = Callable[[str, str, str, str], None]

LOOPBACK = ("127.", "::1", "localhost")


class ListenerLogins:
    def __init__(
        self,
        settings: SaslSettings,
        users: Users,
        passwords: Passwords,
        delays: FailureDelays,
        keys: KeySet | None,
        tokens: Tokens | None = None,
    ) -> None:
        self.settings = settings
        self._users = users
        self._tokens = tokens
        self._passwords = passwords
        self._delays = delays
        self._keys = keys
        self._rules = None if settings.tokens is None else _rules(settings.tokens)
        self.has_telemetry = False
        self.on_login: list[OnLogin] = []
        self.on_failure: list[OnFailure] = []

    def conversation(self, mechanism: str) -> Conversation:
        """The mechanism is enabled."""
        match Mechanism(mechanism):
            case Mechanism.PLAIN:
                return PlainConversation()
            case Mechanism.OAUTHBEARER:
                assert self._rules is not None
                assert self._keys is not None
                return OAuthBearerConversation(self._rules, self._keys)
            case scram:
                find, tokens = partial(self._users.find, scram), self._tokens
                is_enabled = tokens is not None and tokens.is_enabled
                find_token = partial(tokens.find, scram) if tokens and is_enabled else None
                return ScramConversation(scram, find, secrets.token_urlsafe(24), find_token)

    def check_password(self, host: str, user: str, password: str, answer: Answer) -> bool:
        return self._passwords.check(host, user, password, answer)

    def is_current(self, user: str, revision: int, token: str = "") -> bool:
        """Whether a session with this revision of an account, or with this delegation token, may
        begin. Another worker may know a later revision before this one does."""
        if token:
            return self._tokens is not None and self._tokens.is_current(token, user)
        return not revision or revision >= self._users.revision(user) > 0

    def session_end(self, mechanism: str, accepted: Accepted, now: int) -> int:
        longest = self.settings.max_session_ms.get(mechanism, 0)
        ends = [end for end in (accepted.expires_at, longest and now + longest) if end != NEVER]
        return min(ends, default=NEVER)

    # --- what happens ---

    def logged_in(self, identity: Identity) -> None:
        for callback in self.on_login:
            callback(identity, identity.mechanism)

    def failed(self, host: str, mechanism: str, user: str, reason: str) -> float:
        """Returns the delay of the answer, in seconds."""
        for callback in self.on_failure:
            callback(host, mechanism, user, reason)
        now = time.monotonic_ns() // 1_000_000
        return self._delays.failed(host, now, self.settings.failure_delay_ms) / 1000


def _rules(tokens: TokenSettings) -> TokenRules:
    return TokenRules(
        tokens.issuer,
        frozenset(tokens.audience),
        tokens.clock_skew_s,
        tokens.sub_claim,
        tokens.scope_claim,
    )


def warn_of_open_passwords(listener: Listener) -> None:
    """Warn if passwords are sent in clear text (PLAIN without TLS)."""
    sasl = listener.sasl
    if sasl is None or Mechanism.PLAIN not in sasl.mechanisms or listener.uses_tls:
        return
    if not listener.host.startswith(LOOPBACK):
        logger.error(
            "listener %s takes passwords (PLAIN) without TLS on %s: anyone on the way can read "
            "them; use SASL_SSL, or take PLAIN out of sasl.enabled.mechanisms",
            listener.name,
            listener.host or "every address",
        )


class LoginServices:
    """What the logins of a worker's listeners share."""

    def __init__(
        self,
        listeners: Iterable[Listener],
        users: Users,
        tokens: Tokens | None = None,
        *,
        has_telemetry: bool = False,
    ) -> None:
        self._users = users
        self._passwords: Passwords | None = None
        self.key_sets: list[KeySet] = []
        self.by_listener: dict[str, ListenerLogins] = {}
        delays = FailureDelays()
        for listener in listeners:
            sasl = listener.sasl
            if sasl is None:
                continue
            if self._passwords is None:
                self._passwords = Passwords(users)
                users.on_changed.append(self._forget_passwords)
            keys = None
            if sasl.tokens is not None:
                keys = KeySet(sasl.tokens)
                self.key_sets.append(keys)
            logins = ListenerLogins(sasl, users, self._passwords, delays, keys, tokens)
            logins.has_telemetry = has_telemetry
            self.by_listener[listener.name] = logins
            warn_of_open_passwords(listener)

    def _forget_passwords(self, revisions: Mapping[str, int]) -> None:
        assert self._passwords is not None
        self._passwords.forget(revisions)

    def on_events(self, login: OnLogin, failure: OnFailure) -> None:
        for each in self.by_listener.values():
            each.on_login.append(login)
            each.on_failure.append(failure)

    def close(self) -> None:
        if self._passwords is not None:
            self._passwords.close()
