"""Checks passwords for PLAIN: milliseconds of hashing, in one thread of its own.

A correct password is remembered as a keyed hash until the user's credentials change: the next login
costs microseconds. Logins that wait for the same check share it. The queue is bounded; beyond that,
logins are refused without an answer. Half of it is reserved for addresses with few entries, so that
an address that guesses passwords does not keep out the others.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from moldau.broker.access.users import Users
from moldau.broker.security.sasl import Mechanism
from moldau.broker.security.scram import KnownCredential, is_password

MAX_WAITING = 256  # passwords to be checked; about two seconds of hashing
MAX_OF_ONE = 16  # for one address, when the queue is half full

Answer = Callable[[bool, int], None]  # whether it is correct, and the account's revision


class _Question(NamedTuple):
    user: str
    revision: int
    digest: bytes


class Passwords:
    def __init__(self, users: Users, most_waiting: int = MAX_WAITING) -> None:
        self._users = users
        self._most_waiting = most_waiting
        self._key = os.urandom(32)
        self._right: dict[str, tuple[int, bytes]] = {}  # revision and digest, by user
        self._waiting: dict[_Question, list[Answer]] = {}
        self._waiting_of: dict[str, int] = {}  # by address
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "passwords")

    def check(self, host: str, user: str, password: str, answer: Answer) -> bool:
        """Calls `answer`, at once or later. Returns False if the queue is full: then it is not
        called."""
        mechanism, known = self._credential(user)
        digest = hmac.digest(self._key, password.encode(), "sha256")
        right = self._right.get(user)
        if (
            known.revision
            and right is not None
            and right[0] == known.revision
            and hmac.compare_digest(right[1], digest)
        ):
            answer(True, known.revision)
            return True
        question = _Question(user, known.revision, digest)
        waiting = self._waiting.get(question)
        if waiting is not None:
            waiting.append(answer)
            return True
        of_host, count, most = self._waiting_of.get(host, 0), len(self._waiting), self._most_waiting
        if count >= most or (of_host >= MAX_OF_ONE and count >= most // 2):
            return False
        self._waiting[question] = [answer]
        self._waiting_of[host] = of_host + 1
        work = self._loop.run_in_executor(
            self._thread, is_password, mechanism, password, known.credential
        )
        work.add_done_callback(lambda done: self._checked(question, host, done))
        return True

    def _credential(self, user: str) -> tuple[Mechanism, KnownCredential]:
        """Unknown users are checked too, so that they take as long as known ones."""
        mechanism = self._users.preferred(user)
        return mechanism, self._users.find(mechanism, user)

    def _checked(self, question: _Question, host: str, done: asyncio.Future[bool]) -> None:
        answers = self._waiting.pop(question, [])
        self._waiting_of[host] -= 1
        if not self._waiting_of[host]:
            del self._waiting_of[host]
        if done.cancelled():
            return
        is_right = done.exception() is None and done.result() and question.revision != 0
        if is_right:
            self._right[question.user] = (question.revision, question.digest)
        for answer in answers:
            answer(is_right, question.revision)

    def forget(self, users: Iterable[str]) -> None:
        """The credentials of these users have changed."""
        for user in users:
            self._right.pop(user, None)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
