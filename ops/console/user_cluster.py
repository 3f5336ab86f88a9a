"""The cluster as one user of the console may use it: every connection speaks for that user.

The broker checks every request against the user's ACLs; nothing is decided here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from moldau.broker.private.table import PREAMBLE
from moldau.broker.security.identity import Identity
from moldau.broker.wire.schema import Message
from moldau.ops.client import API_OF, ClientError, Cluster, Denied, LocalSockets, Node
from moldau.ops.console.rights import denial_text
from moldau.ops.console.sessions import CHANGED, Session


class SessionOver(ClientError):
    """The user is not logged in any more."""


class NotAllowed(ClientError):
    """The user's ACLs do not allow it. The text says which right is missing."""


class UserCluster(Cluster):
    def __init__(
        self,
        session: Session,
        is_over: Callable[[Identity], bool],
        port: int,
        local: LocalSockets,
        *,
        timeout: float,
        client_id: str,
    ) -> None:
        """`is_over`: asks whether workers refuse to serve this session."""
        super().__init__(
            [("127.0.0.1", port)],
            local=local,
            timeout=timeout,
            client_id=client_id,
            introduction=PREAMBLE.request(session.identity),
        )
        self.session = session
        self._is_over = is_over
        self._last_api = ""

    def call(self, request: Message, node: Node | None = None, version: int | None = None) -> Any:
        # What is live goes on for long: it ends with the session.
        reason = self.session.reason_to_end(time.monotonic())
        if reason:
            raise SessionOver(reason)
        self._last_api = API_OF[type(request)].name
        try:
            return super().call(request, node, version)
        except ClientError:
            # Workers close connections of a session that is over; that may be known here later.
            if not self.session.ended and self._is_over(self.session.identity):
                self.session.ended = CHANGED
            if self.session.ended:
                raise SessionOver(self.session.ended) from None
            raise

    def worded(self, error: ClientError) -> str:
        if isinstance(error, Denied):
            return denial_text(self.session.user, self._last_api, error)
        return super().worded(error)
