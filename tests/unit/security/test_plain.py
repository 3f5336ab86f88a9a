"""PLAIN: the three texts of its one message, and any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.security.plain import INVALID, PlainConversation
from moldau.broker.security.sasl import Accepted, CheckPassword, Rejected


@pytest.mark.parametrize("token", [b"\0alice\0secret", b"alice\0alice\0secret"])
def test_user_and_password(token: bytes) -> None:
    login = PlainConversation()
    assert login.receive(token, 0) == CheckPassword("alice", "secret")
    assert login.checked(True, 7) == Accepted("alice", revision=7)


def test_unknown_users_and_wrong_passwords_are_told_the_same() -> None:
    login = PlainConversation()
    login.receive(b"\0alice\0secret", 0)
    assert login.checked(False, 0) == Rejected("unknown user or wrong password", "alice", INVALID)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"alice\0secret",
        b"\0\0secret",
        b"\0alice\0",
        b"\0alice\0secret\0",
        b"bob\0alice\0secret",
        b"\0\xff\0secret",
        b"\0alice\0" + b"x" * 5000,
        b"\0" + b"x" * 2000 + b"\0secret",
    ],
)
def test_another_message_is_rejected_with_the_same_text(token: bytes) -> None:
    step = PlainConversation().receive(token, 0)
    assert isinstance(step, Rejected)
    assert step.message == INVALID


@given(st.lists(st.sampled_from([b"\0", b"alice"]) | st.binary(max_size=4)).map(b"".join))
def test_any_bytes_are_a_password_or_rejected(token: bytes) -> None:
    assert isinstance(PlainConversation().receive(token, 0), CheckPassword | Rejected)


def test_a_password_is_never_shown() -> None:
    assert "secret" not in repr(PlainConversation().receive(b"\0alice\0secret", 0))
