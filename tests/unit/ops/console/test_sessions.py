"""Sessions of the console: how they begin, last and end."""

from __future__ import annotations

from moldau.broker.security.identity import EndedSessions, Identity
from moldau.ops.console.sessions import CHANGED, EXPIRED, IDLE_S, LONGEST_S, TOO_MANY, Sessions

ALICE = Identity(principal="User:alice", listener="SASL_SSL", revision=3)
BOB = Identity(principal="User:bob", listener="SASL_SSL", revision=7)


def test_a_session_is_found_by_its_id_only() -> None:
    sessions = Sessions()
    session = sessions.begin(ALICE, 0.0, 0)
    assert sessions.find(session.id, 1.0) is session
    assert sessions.find("", 1.0) is None
    assert sessions.find(session.id[:-1], 1.0) is None
    assert len(session.id) >= 43  # 256 bits
    assert sessions.begin(ALICE, 0.0, 0).id != session.id


def test_use_extends_it_and_live_pages_do_not() -> None:
    sessions = Sessions()
    used, watched = sessions.begin(ALICE, 0.0, 0), sessions.begin(ALICE, 0.0, 0)
    assert sessions.find(used.id, IDLE_S - 1) is used
    assert sessions.find(watched.id, IDLE_S - 1, is_use=False) is watched
    assert sessions.find(used.id, IDLE_S + 1) is used
    assert sessions.find(watched.id, IDLE_S + 1) is None
    assert watched.ended == EXPIRED
    assert len(sessions) == 1


def test_it_ends_at_last_however_much_it_is_used() -> None:
    sessions = Sessions()
    session = sessions.begin(ALICE, 0.0, 0)
    now = 0.0
    while now + IDLE_S / 2 < LONGEST_S:
        now += IDLE_S / 2
        assert sessions.find(session.id, now) is session
    assert sessions.find(session.id, LONGEST_S) is None


def test_it_ends_when_the_broker_wants_another_login() -> None:
    """connections.max.reauth.ms: in milliseconds since 1970, not on the clock of sessions."""
    identity = Identity(principal="User:alice", revision=3, expires_at=1_000_000)
    sessions = Sessions()
    session = sessions.begin(identity, 500.0, 990_000)
    assert sessions.find(session.id, 509.0) is session
    assert session.reason_to_end(509.9) == ""
    assert sessions.find(session.id, 510.0) is None


def test_a_user_that_changed_is_logged_out_and_others_are_not() -> None:
    sessions = Sessions()
    alice, bob = sessions.begin(ALICE, 0.0, 0), sessions.begin(BOB, 0.0, 0)
    sessions.users_changed(EndedSessions({"alice": 3, "carol": 0}))  # it is the current one
    assert sessions.find(alice.id, 1.0) is alice
    sessions.users_changed(EndedSessions({"alice": 4}))
    assert sessions.find(alice.id, 1.0) is None
    assert alice.ended == CHANGED
    sessions.users_changed(EndedSessions({"bob": 0}))  # removed
    assert sessions.find(bob.id, 1.0) is None


def test_there_are_so_many_at_most() -> None:
    sessions = Sessions(most=4, most_of_user=2)
    alices = [sessions.begin(ALICE, float(now), 0) for now in range(3)]
    assert [each.ended for each in alices] == [TOO_MANY, "", ""]
    bobs = [sessions.begin(BOB, 5.0, 0) for _ in range(2)]
    assert sessions.find(alices[1].id, 6.0) is alices[1]  # alices[2] was not used for longest now
    carol = sessions.begin(Identity(principal="User:carol", revision=1), 7.0, 0)
    assert alices[2].ended == TOO_MANY
    assert [each.ended for each in (*bobs, alices[1], carol)] == [""] * 4


def test_those_that_expired_make_room() -> None:
    sessions = Sessions(most=1, most_of_user=1)
    sessions.begin(ALICE, 0.0, 0)
    sessions.begin(BOB, IDLE_S, 0)
    assert len(sessions) == 1
