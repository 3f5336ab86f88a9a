"""ENDED_SESSIONS: ends sessions when their user is removed or gets another password, or when their
delegation token is removed or expires.

The worker closes its own connections, and tells the routers, which close theirs: a router's client
may have no connection to any worker at the moment.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from moldau.broker.handlers.private.subscribers import Subscribers
from moldau.broker.private.table import ENDED_SESSIONS
from moldau.broker.security.identity import EndedSessions
from moldau.broker.server.connection import Connection

logger = logging.getLogger("moldau.server")

MOST_NAMED = 10  # in a line of the log


class SessionEnder:
    def __init__(self, connections: set[Connection]) -> None:
        self._connections = connections
        self.routers = Subscribers(ENDED_SESSIONS)

    def users_changed(self, revisions: Mapping[str, int]) -> None:
        self._end(EndedSessions(dict(revisions)), "changed users", revisions)

    def tokens_ended(self, ids: Collection[str]) -> None:
        self._end(EndedSessions(tokens=frozenset(ids)), "tokens that are over", ids)

    def _end(self, ended: EndedSessions, of: str, names: Collection[str]) -> None:
        closed = 0
        for connection in list(self._connections):
            if ended.concerns(connection.identity):
                connection.end()
                closed += 1
        if closed:
            some = [*sorted(names)[:MOST_NAMED], *(["…"] if len(names) > MOST_NAMED else [])]
            logger.info("closed %d connections of %s: %s", closed, of, ", ".join(some))
        self.routers.tell(ended)
