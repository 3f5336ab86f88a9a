"""The store for processes that may block: the supervisor and the command line.

Workers use the connections of store.py instead. Everything here is a small read, or about the
server as a whole: who serves the database, and its append-only file.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, cast

import msgspec
import redis

from moldau.broker.errors import StoreFault, StoreRefused, StoreUnavailable
from moldau.broker.security.accounts import Account
from moldau.broker.store import keys
from moldau.broker.store.client import connect
from moldau.broker.store.format import CURRENT_VALUE, GUARD
from moldau.broker.store.lease import Claimant, LeaseState, read_state
from moldau.broker.store.scripts import script
from moldau.broker.store.topics import CALL_EVEN_IF_FULL, TopicRecord, guard_record
from moldau.broker.store.users import SECRET, read_account

_RELEASE_CLAIM = script("lease_release")


class BlockingStore:
    """The store at a URL. It connects with the first command. Raises StoreFault."""

    def __init__(self, url: str) -> None:
        self._redis = connect(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._redis.close()

    # --- records ---

    def cluster_id(self) -> str | None:
        stored = self._ask(self._redis.get, keys.CLUSTER)
        return None if stored is None else stored.decode()

    # --- users ---

    def user(self, name: str) -> Account | None:
        """A user's record; None if there is none, or it cannot be read."""
        stored = self._ask(self._redis.hget, keys.USERS, name)
        try:
            return None if stored is None else read_account(stored)
        except ValueError:
            return None

    def has_users(self) -> bool:
        """Are there users, or were there any? The secret stays when the last one is removed."""
        return bool(self._ask(self._redis.exists, keys.USERS))

    def set_user(self, name: str, account: Account) -> None:
        """Save a user. Only while no worker runs: nothing is announced."""
        value = msgspec.msgpack.encode(account)
        secret = secrets.token_bytes(32)
        for words in (("HSETNX", SECRET, secret), ("HSET", name, value)):
            self._ask(self._redis.eval, CALL_EVEN_IF_FULL, 1, keys.USERS, *words)

    # --- who serves the database ---

    def lease(self, claimant: Claimant, mode: str, *, known: bool = False) -> LeaseState:
        """Take or renew the lease of the broker that serves the database."""
        words = claimant.words(mode, known=known)
        return read_state(self._ask(self._redis.eval, *words))

    def confirm_lease(self, patience_ms: int) -> bool:
        """Whether every replica that is online has what was written so far."""
        replicas = int(self._ask(self._redis.info, "replication").get("connected_slaves", 0))
        return int(self._ask(self._redis.wait, replicas, patience_ms)) >= replicas

    def release_claim(self, holder: bytes) -> None:
        """Remove the claim of a broker of a version without leases."""
        self._ask(self._redis.eval, _RELEASE_CLAIM, 1, keys.SERVING, holder)

    def give_back_lease(self, claimant: Claimant) -> None:
        self._ask(self._redis.eval, *claimant.words_to_give_back())

    # --- the format of the store ---

    def format(self) -> bytes | None:
        return cast("bytes | None", self._ask(self._redis.get, keys.FORMAT))

    def is_unused(self) -> bool:
        """Has no broker ever served this database?"""
        return not self._ask(self._redis.exists, keys.CLUSTER)

    def set_format(self) -> None:
        self._ask(self._redis.eval, CALL_EVEN_IF_FULL, 1, keys.FORMAT, "SET", CURRENT_VALUE)

    def set_guard(self) -> None:
        """Keep out versions that do not look at the format."""
        words = ("HSET", GUARD, guard_record())
        self._ask(self._redis.eval, CALL_EVEN_IF_FULL, 1, keys.TOPICS, *words)

    def topic_records(self) -> list[TopicRecord]:
        """The topics whose records can be read, deleted ones too."""
        return self.read_topics(self._ask(self._redis.hvals, keys.TOPICS))

    def read_topics(self, values: Iterable[bytes]) -> list[TopicRecord]:
        records = [msgspec.msgpack.decode(one, type=TopicRecord) for one in values]
        return [record for record in records if record.name != GUARD]

    def key_count(self) -> int:
        return int(self._ask(self._redis.dbsize))

    def own_keys(self, step: int) -> Iterator[list[bytes]]:
        """All keys that begin with `moldau:`, some at a time; a key may come twice."""
        cursor = 0
        while True:
            cursor, found = self._ask(self._redis.scan, cursor, keys.OWN + b"*", step)
            yield found
            if not cursor:
                return

    def rename(self, names: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Rename keys from old to new; returns those whose new name exists. Missing keys, such as
        a lease that has expired, are skipped."""
        if not names:
            return []
        with self._redis.pipeline(transaction=False) as pipeline:
            for old, new in names:
                pipeline.renamenx(old, new)
            replies = self._ask(pipeline.execute, False)  # errors among the replies, not raised
        taken = []
        for pair, reply in zip(names, replies, strict=True):
            if isinstance(reply, redis.ResponseError) and "no such key" in str(reply):
                continue
            if isinstance(reply, Exception):
                raise StoreRefused(f"{pair[0]!r} cannot be renamed: {reply}")
            if not reply:
                taken.append(pair)
        return taken

    # --- the server ---

    def clock(self) -> float:
        """The server's time, in seconds since 1970."""
        seconds, microseconds = self._ask(self._redis.time)
        return float(seconds) + float(microseconds) / 1e6

    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = self._ask(self._redis.info)
        return found

    def config(self) -> dict[str, str]:
        """How it keeps its data, and when it takes writes; empty where it does not tell."""
        found: dict[str, str] = {}
        for name in ("save", "appendfsync", "min-replicas-to-write"):
            try:
                found |= self._ask(self._redis.config_get, name)
            except StoreRefused:
                return {}
        return found

    def persistence(self) -> dict[str, Any]:
        """INFO of the append-only file and of the memory."""
        info = self._ask(self._redis.info, "persistence")
        return {**info, **self._ask(self._redis.info, "memory")}

    def rewrite_append_only_file(self) -> None:
        """Start a rewrite; the server continues in the background."""
        self._ask(self._redis.bgrewriteaof)

    def _ask(self, command: Callable[..., Any], *arguments: object) -> Any:
        """Run a command; redis-py's exceptions become StoreFaults."""
        try:
            return command(*arguments)
        except redis.ResponseError as fault:
            raise StoreRefused(str(fault)) from fault
        except (redis.ConnectionError, redis.TimeoutError) as fault:
            raise StoreUnavailable(str(fault)) from fault
        except redis.RedisError as fault:
            raise StoreFault(str(fault)) from fault
