"""Name and password, checked by the broker: a login over a worker's unix socket, as by a router.

The worker takes it for the login of a client at the browser's address: failures wait longer and
longer for their answer, and are in the audit. The same worker is asked as long as it is up, so that
it remembers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from moldau.broker.private.client import ask_blocking, ask_each
from moldau.broker.private.table import PREAMBLE, VISIBLE_NAMES, WHO_AM_I
from moldau.broker.security.identity import Identity, Role
from moldau.broker.wire.primitives import MalformedMessage
from moldau.ops.client import AuthenticationFailed, Connection
from moldau.ops.client.security import PLAIN, Sasl
from moldau.ops.console.visible_names import Visible, merged
from moldau.ops.http.collector import PATIENCE_S
from moldau.ops.http.settings import ConsoleLogin

TIMEOUT_S = 10.0
MAX_AT_ONCE = 16
MAX_AT_ONCE_OF_ADDRESS = 2


class LoginRefused(Exception):
    """An unknown user or a wrong password: which of them is not said."""


class TooManyLogins(Exception):
    """So many wait for their answer that no further one is tried."""


class LoginUnavailable(Exception):
    """No worker answers."""


class Logins:
    def __init__(self, settings: ConsoleLogin, worker_sockets: Sequence[str]) -> None:
        self._settings = settings
        self._sockets = list(worker_sockets)
        self._waiting: dict[str, int] = {}  # by address
        self._threads = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="login")

    async def check(self, user: str, password: str, host: str) -> Identity:
        """Raises LoginRefused, TooManyLogins, LoginUnavailable."""
        own = self._waiting.get(host, 0)
        if own >= MAX_AT_ONCE_OF_ADDRESS or sum(self._waiting.values()) >= MAX_AT_ONCE:
            raise TooManyLogins
        self._waiting[host] = own + 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._check, user, password, host)
        finally:
            self._waiting[host] -= 1
            if not self._waiting[host]:
                del self._waiting[host]

    def _check(self, user: str, password: str, host: str) -> Identity:
        stranger = Identity(host=host, listener=self._settings.listener, role=Role.UNAUTHENTICATED)
        refused = False
        for mechanism in _to_try(self._settings.mechanisms):
            try:
                return self._log_in(stranger, Sasl(mechanism, user, password))
            except AuthenticationFailed:
                refused = True  # with SCRAM alone a user may have one kind of it only
        assert refused
        raise LoginRefused

    def _log_in(self, stranger: Identity, sasl: Sasl) -> Identity:
        for path in self._sockets:
            try:
                with Connection(
                    path, introduction=PREAMBLE.request(stranger), timeout=TIMEOUT_S
                ) as connection:
                    connection.authenticate(sasl)
                    identity = connection.ask_private(WHO_AM_I, None)
            except AuthenticationFailed:
                raise
            except (OSError, MalformedMessage, ValueError):
                continue  # it is being restarted, most likely
            if identity.role is not Role.CLIENT:
                raise LoginUnavailable
            return identity
        raise LoginUnavailable

    def is_over(self, identity: Identity) -> bool:
        """Whether workers refuse to serve this session: of a user that was removed, or has another
        password. False while none answers."""
        for path in self._sockets:
            found = ask_blocking(path, VISIBLE_NAMES, identity, TIMEOUT_S)
            if found is not None:
                return found.is_over
        return False

    async def ask_visible(self, identity: Identity) -> Visible | None:
        """Ask what a user may see; None: its session is over. Raises LoginUnavailable."""
        answers = await ask_each(self._sockets, VISIBLE_NAMES, identity, PATIENCE_S)
        found = [each for each in answers if each is not None]
        if not found:
            raise LoginUnavailable
        return None if any(each.is_over for each in found) else merged(found)


def _to_try(mechanisms: Sequence[str]) -> list[str]:
    """PLAIN checks whatever the broker keeps of the user's password."""
    return [PLAIN] if PLAIN in mechanisms else list(mechanisms)
