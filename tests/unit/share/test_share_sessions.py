"""Share sessions (9.4, 9.5, 9.6, 9.27)."""

from __future__ import annotations

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.share.sessions import (
    CLOSES,
    MAX_EPOCH,
    Opened,
    SessionKey,
    ShareSession,
    ShareSessions,
    TopicIdPartition,
)

KEY = SessionKey("group", "member")
A, B, C = (TopicIdPartition(bytes([each]) * 16, 0) for each in range(3))


def opened(sessions: ShareSessions, key: SessionKey = KEY, connection: str = "one") -> ShareSession:
    outcome = sessions.open(key, connection)
    assert isinstance(outcome, Opened)
    return outcome.session


def test_9_4_epochs_count_up_and_begin_again_at_one() -> None:
    sessions = ShareSessions(10)
    session = opened(sessions)
    for epoch in (1, 2, 3):
        assert sessions.use(KEY, epoch, "one") is session
    session.next_epoch = MAX_EPOCH
    assert sessions.use(KEY, MAX_EPOCH, "one") is session
    assert sessions.use(KEY, 1, "one") is session


@pytest.mark.parametrize("epoch", [0, 1, 3, MAX_EPOCH])
def test_9_4_another_epoch_is_refused_and_changes_nothing(epoch: int) -> None:
    sessions = ShareSessions(10)
    session = opened(sessions)
    sessions.use(KEY, 1, "one")
    assert sessions.use(KEY, epoch, "one") is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sessions.use(KEY, 2, "one") is session


def test_9_4_an_unknown_session_is_not_found() -> None:
    sessions = ShareSessions(10)
    for epoch in (1, CLOSES):
        assert sessions.use(KEY, epoch, "one") is ErrorCode.SHARE_SESSION_NOT_FOUND
    session = opened(sessions)
    assert sessions.use(KEY, CLOSES, "one") is session
    assert sessions.use(KEY, CLOSES, "one") is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert sessions.use(KEY, 1, "one") is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_9_4_opening_again_replaces_the_session() -> None:
    sessions = ShareSessions(1)
    first = sessions.open(KEY, "one")
    second = sessions.open(KEY, "two")
    assert isinstance(first, Opened)
    assert isinstance(second, Opened)
    assert not first.has_replaced
    assert second.has_replaced
    assert sessions.connection_ended("one") == []
    assert sessions.use(KEY, 1, "two") is second.session


def test_the_limit_counts_sessions() -> None:
    sessions = ShareSessions(1)
    opened(sessions)
    other = SessionKey("group", "other")
    assert sessions.open(other, "two") is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    sessions.use(KEY, CLOSES, "one")
    assert opened(sessions, other, "two")


def test_9_6_the_end_of_a_connection_ends_its_sessions() -> None:
    sessions = ShareSessions(10)
    other = SessionKey("another", "member")
    opened(sessions)
    opened(sessions, other)
    moved = opened(sessions, SessionKey("group", "moved"))
    assert sessions.use(moved.key, 1, "two") is moved
    assert sessions.connection_ended("one") == [other, KEY]
    assert len(sessions) == 1
    assert sessions.has_group("group")
    assert not sessions.has_group("another")
    sessions.drop_group("group")
    assert not len(sessions)
    assert sessions.connection_ended("two") == []


def test_9_5_partitions_are_added_forgotten_and_take_turns() -> None:
    sessions = ShareSessions(10)
    session = opened(sessions)
    session.change([A, B, C], [])
    turns = []
    for epoch in (1, 2, 3, 4):
        turns.append(session.in_turns())
        sessions.use(KEY, epoch, "one")
    assert turns == [[A, B, C], [B, C, A], [C, A, B], [A, B, C]]
    session.change([A], [B])
    assert sorted(session.in_turns()) == [A, C]
    session.change([], [A, B, C])
    assert session.in_turns() == []


def test_9_5_a_reply_leaves_out_what_has_nothing_to_say() -> None:
    session = opened(ShareSessions(10))
    session.change([A], [])

    def has_news(*, has_content: bool = False, is_error: bool = False) -> bool:
        return session.has_news(A, has_content=has_content, is_error=is_error)

    assert has_news()  # it is new
    assert not has_news()
    assert has_news(has_content=True)
    assert not has_news()
    assert has_news(is_error=True)
    assert has_news(is_error=True)
    assert has_news()  # the error is over
    assert not has_news()
    session.change([], [A])
    session.change([A], [])
    assert has_news()  # it is new again
