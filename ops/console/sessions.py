"""Who is logged in to the console: sessions, kept in memory, and how they end. No I/O, no clock.

A session belongs to a user of the broker, and to the revision of its account: a user that is
removed or gets another password is logged out. It ends when it was not used for a while, and at
the latest after half a day. What pages ask for by themselves (they are live) does not count as use.
"""

from __future__ import annotations

import secrets

from moldau.broker.security.identity import NEVER, EndedSessions, Identity
from moldau.ops.console.visible_names import NOTHING, Shown, Visible

IDLE_S = 3600.0
LONGEST_S = 12 * 3600.0
MAX_SESSIONS = 1_000
MAX_SESSIONS_OF_USER = 20

LOGGED_OUT = "you have logged out"
EXPIRED = "your session has expired: log in again"
CHANGED = "your user was removed or has another password: log in again"
TOO_MANY = "there are too many sessions: this one has ended"


class Session:
    """`ended`: why it is over; empty while it lasts. Threads that work for it look at that."""

    def __init__(self, identity: Identity, now: float, ends_at: float) -> None:
        self.id = secrets.token_urlsafe(32)
        self.identity = identity
        self.used_at = now
        self.ends_at = ends_at
        self.ended = ""
        # What the user may see, as the broker said last, and when.
        self.visible: Visible = NOTHING
        self.visible_at = float("-inf")
        self.shown = Shown()

    @property
    def user(self) -> str:
        return self.identity.user

    def reason_to_end(self, now: float) -> str:
        """Empty: there is none."""
        if self.ended:
            return self.ended
        is_expired = now >= self.ends_at or now - self.used_at >= IDLE_S
        return EXPIRED if is_expired else ""


class Sessions:
    def __init__(self, most: int = MAX_SESSIONS, most_of_user: int = MAX_SESSIONS_OF_USER) -> None:
        self._most = most
        self._most_of_user = most_of_user
        self._by_id: dict[str, Session] = {}  # those used last come last

    def __len__(self) -> int:
        return len(self._by_id)

    def begin(self, identity: Identity, now: float, clock_ms: int) -> Session:
        """`clock_ms`: the time of day, by which the broker says when the login ends (KIP-368)."""
        self._sweep(now)
        ends_at = now + LONGEST_S
        if identity.expires_at != NEVER:
            ends_at = min(ends_at, now + (identity.expires_at - clock_ms) / 1000)
        own = [each for each in self._by_id.values() if each.user == identity.user]
        if len(own) >= self._most_of_user:
            self.end(own[0], TOO_MANY)
        elif len(self._by_id) >= self._most:
            self.end(next(iter(self._by_id.values())), TOO_MANY)
        session = Session(identity, now, ends_at)
        self._by_id[session.id] = session
        return session

    def find(self, session_id: str, now: float, *, is_use: bool = True) -> Session | None:
        """The session, if it lasts; `is_use`: that somebody is there."""
        session = self._by_id.get(session_id)
        if session is None:
            return None
        reason = session.reason_to_end(now)
        if reason:
            self.end(session, reason)
            return None
        if is_use:
            session.used_at = now
            self._by_id[session.id] = self._by_id.pop(session.id)
        return session

    def end(self, session: Session, reason: str) -> None:
        session.ended = session.ended or reason
        self._by_id.pop(session.id, None)

    def users_changed(self, ended: EndedSessions) -> None:
        for session in list(self._by_id.values()):
            if ended.concerns(session.identity):
                self.end(session, CHANGED)

    def _sweep(self, now: float) -> None:
        for session in list(self._by_id.values()):
            reason = session.reason_to_end(now)
            if reason:
                self.end(session, reason)
