"""Share sessions: which partitions a member reads, and the epochs of its requests.

A request names what changed since the last one, and carries the next epoch, so a lost or repeated
one is noticed. Sessions are memory of a worker; a member opens a new one when its session is gone.
The end of a session releases what its member has acquired: that is for the caller.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from moldau.broker.errors import ErrorCode

OPENS = 0
CLOSES = -1
MAX_EPOCH = (1 << 31) - 1


class SessionKey(NamedTuple):
    group_id: str
    member_id: str


class TopicIdPartition(NamedTuple):
    topic_id: bytes
    partition: int


class ShareSession:
    """`partitions` are in the order in which they were added."""

    __slots__ = ("_answered", "connection", "key", "next_epoch", "partitions")

    def __init__(self, key: SessionKey, connection: Hashable) -> None:
        self.key = key
        self.connection = connection
        self.next_epoch = 1
        self.partitions: dict[TopicIdPartition, None] = {}
        self._answered: dict[TopicIdPartition, bool] = {}
        """The partitions that were in a reply, and whether the last one had an error for them."""

    def change(
        self, added: Iterable[TopicIdPartition], forgotten: Iterable[TopicIdPartition]
    ) -> None:
        for each in added:
            self.partitions.setdefault(each)
        for each in forgotten:
            self.partitions.pop(each, None)
            self._answered.pop(each, None)

    def in_turns(self) -> list[TopicIdPartition]:
        """Return the partitions to fetch from: each request begins with another one, so that all
        get their part of what a reply may hold."""
        every = list(self.partitions)
        if len(every) > 1:
            first = (self.next_epoch - 1) % len(every)
            every = every[first:] + every[:first]
        return every

    def has_news(self, partition: TopicIdPartition, *, has_content: bool, is_error: bool) -> bool:
        """Check whether a partition belongs into this reply, and note that it was in one.

        It does with records, the outcome of acknowledgements (its content), or an error; in its
        first reply; and when its error is over.
        """
        had_error = self._answered.get(partition, True)
        if partition in self.partitions:
            self._answered[partition] = is_error
        return has_content or is_error or had_error


class Opened(NamedTuple):
    session: ShareSession
    has_replaced: bool
    """The member had a session: what it acquired there is released, as nothing it says later can
    name it."""


class ShareSessions:
    """All sessions of a worker."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_connection: dict[Hashable, set[SessionKey]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def has_group(self, group_id: str) -> bool:
        return any(key.group_id == group_id for key in self._sessions)

    def open(self, key: SessionKey, connection: Hashable) -> Opened | ErrorCode:
        """Begin a session (epoch 0), in place of the one that the member may have."""
        replaced = self._sessions.get(key)
        if replaced is not None:
            self._remove(replaced)
        elif len(self._sessions) >= self.limit:
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        session = self._sessions[key] = ShareSession(key, connection)
        self._by_connection.setdefault(connection, set()).add(key)
        return Opened(session, replaced is not None)

    def use(self, key: SessionKey, epoch: int, connection: Hashable) -> ShareSession | ErrorCode:
        """Return the session that this request goes on with. Epoch -1 also ends it."""
        session = self._sessions.get(key)
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch == CLOSES:
            self._remove(session)
            return session
        if epoch != session.next_epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        session.next_epoch = epoch % MAX_EPOCH + 1
        if session.connection != connection:
            self._leave_connection(session)
            session.connection = connection
            self._by_connection.setdefault(connection, set()).add(key)
        return session

    def connection_ended(self, connection: Hashable) -> list[SessionKey]:
        """End the sessions of a connection; those that moved to another one stay."""
        ended = sorted(self._by_connection.pop(connection, ()))
        for key in ended:
            del self._sessions[key]
        return ended

    def drop_group(self, group_id: str) -> None:
        """End all sessions of a group."""
        for key in [key for key in self._sessions if key.group_id == group_id]:
            self._remove(self._sessions[key])

    def _remove(self, session: ShareSession) -> None:
        del self._sessions[session.key]
        self._leave_connection(session)

    def _leave_connection(self, session: ShareSession) -> None:
        keys = self._by_connection[session.connection]
        keys.discard(session.key)
        if not keys:
            del self._by_connection[session.connection]
