"""The delegation tokens of the store, in memory.

Changes are read one by one, since there may be thousands of tokens. When a token expires, its
sessions end at that moment, on every worker; one worker removes it from the store some time later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

from moldau.broker.errors import ErrorCode, KafkaError, StoreFault
from moldau.broker.logging_setup import LimitedLog
from moldau.broker.security.identity import USER
from moldau.broker.security.sasl import MAX_NAME, Mechanism
from moldau.broker.security.scram import KnownCredential
from moldau.broker.security.tokens import Lifetimes, Token, TokenKey, first_times, new_id
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.store.tokens import TokenStore, read_token
from moldau.broker.store.topics import Change, TopicStore

logger = logging.getLogger("moldau.access")
limited = LimitedLog(logger)

CHECK_S = 1.0
FIRST_SWEEP_MS = 60_000  # after the start, unless the interval is shorter
AT_ONCE = 250  # read before other requests get a turn

# From a token and the time to the new token; None removes it. Raises KafkaError.
TokenChange = Callable[[Token, int], Token | None]


class Tokens:
    """A `CachedTable` for changes of kind "token"."""

    def __init__(self, store: TokenStore, changes: TopicStore, config: BrokerConfig) -> None:
        self._store = store
        self._changes = changes
        secret = config.get("delegation.token.secret.key")
        self._key = TokenKey(secret) if secret else None
        self.lifetimes = Lifetimes(
            config.get_int("delegation.token.max.lifetime.ms"),
            config.get_int("delegation.token.expiry.time.ms"),
        )
        self._interval_ms = config.get_int("delegation.token.expiry.check.interval.ms")
        self._most_of_one = config.get_int("moldau.delegation.tokens.per.owner")
        self._tokens: dict[str, Token] = {}
        self._hmacs: dict[str, bytes] = {}
        self._ids: dict[bytes, str] = {}  # by HMAC
        self._owned: Counter[str] = Counter()
        self._useless: dict[str, Token] = {}  # made with another key
        self._next_expiry = 0
        self._checked_at = 0
        # One thread: everyone who can log in can make tokens, and each takes milliseconds.
        self._thread = ThreadPoolExecutor(1, "tokens")
        self._loading = asyncio.Lock()
        # Called with the ids of tokens whose sessions are over.
        self.on_ended: list[Callable[[Collection[str]], None]] = []
        # Called with the tokens that were removed because they had expired.
        self.on_removed: Callable[[str, Token], None] | None = None

    # --- looking up ---

    @property
    def is_enabled(self) -> bool:
        return self._key is not None

    @property
    def all(self) -> Mapping[str, Token]:
        return self._tokens

    def check_enabled(self) -> TokenKey:
        """Raises KafkaError."""
        if self._key is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        return self._key

    def hmac(self, token_id: str) -> bytes:
        return self.check_enabled().hmac(token_id)

    def id_of(self, token_hmac: bytes) -> str:
        """Raises KafkaError."""
        self.check_enabled()
        token_id = self._ids.get(token_hmac)
        if token_id is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        return token_id

    def find(self, mechanism: Mechanism, token_id: str) -> KnownCredential:
        """Returns a credential for every id, known or not. Tokens must be enabled."""
        key = self.check_enabled()
        token = self._tokens.get(token_id)
        if token is None or not token.may_log_in(now_ms()):
            return KnownCredential(key.credential(mechanism, token_id, None), 0)
        credential = key.credential(mechanism, token_id, token)
        return KnownCredential(credential, 0, token.owner.removeprefix(USER), token.expires_at)

    def is_current(self, token_id: str, user: str) -> bool:
        """Whether a session with this token may begin."""
        token = self._tokens.get(token_id)
        return token is not None and token.owner == USER + user and token.may_log_in(now_ms())

    # --- keeping in step ---

    async def load(self) -> None:
        if self._key is None:
            return
        async with self._loading:
            found: dict[str, Token] = {}
            for number, (name, value) in enumerate((await self._store.all()).items()):
                if number % AT_ONCE == AT_ONCE - 1:
                    await asyncio.sleep(0)
                token = _readable(name, value)
                if token is not None:
                    found[name.decode()] = token
            gone = [
                token_id for token_id in (*self._tokens, *self._useless) if token_id not in found
            ]
            for number, (token_id, token) in enumerate(found.items()):
                if number % AT_ONCE == AT_ONCE - 1:
                    await asyncio.sleep(0)
                self._use(token_id, token)
            self._remove(gone)
            if self._useless:
                logger.warning(
                    "%d delegation tokens cannot be used: they were made with another "
                    "delegation.token.secret.key; set the former one again, or make new tokens",
                    len(self._useless),
                )

    async def refresh(self, token_id: str) -> None:
        """Load one token; "" loads all."""
        if not token_id:
            await self.load()
        elif self._key is not None:
            async with self._loading:
                value = await self._store.get(token_id)
                token = None if value is None else _readable(token_id.encode(), value)
                if token is None:
                    self._remove([token_id])
                else:
                    self._use(token_id, token)

    def _use(self, token_id: str, token: Token) -> None:
        assert self._key is not None
        if token.key != self._key.fingerprint:
            self._useless[token_id] = token
            return
        if token_id not in self._tokens:
            made = self._key.hmac(token_id)
            self._hmacs[token_id] = made
            self._ids[made] = token_id
            self._owned[token.owner] += 1
        self._tokens[token_id] = token
        self._next_expiry = min(self._next_expiry, token.expires_at)

    def _remove(self, ids: Collection[str]) -> None:
        ended = []
        for token_id in ids:
            self._useless.pop(token_id, None)
            token = self._tokens.pop(token_id, None)
            if token is not None:
                self._owned[token.owner] -= 1
                if not self._owned[token.owner]:
                    del self._owned[token.owner]
                del self._ids[self._hmacs.pop(token_id)]
                ended.append(token_id)
        self._end(ended)

    def _end(self, ids: Collection[str]) -> None:
        if ids:
            for callback in self.on_ended:
                callback(ids)

    # --- changing ---

    async def create(
        self, owner: str, requester: str, renewers: tuple[str, ...], max_lifetime_ms: int
    ) -> tuple[str, Token]:
        """The change is in force on this worker on return, on others when they have applied it.
        Raises KafkaError, StoreFault."""
        key = self.check_enabled()
        if self._owned[owner] >= self._most_of_one:
            text = (
                "%s has %d delegation tokens, and gets no more (moldau.delegation.tokens.per.owner)"
            )
            limited.warning("many", text, owner[:MAX_NAME], self._most_of_one)
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        token_id = new_id()
        loop = asyncio.get_running_loop()
        credentials = await loop.run_in_executor(self._thread, key.credentials, token_id)
        now = now_ms()
        expires_at, max_at = first_times(self.lifetimes, max_lifetime_ms, now)
        token = Token(
            owner,
            requester,
            renewers,
            now,
            expires_at,
            max_at,
            key.fingerprint,
            credentials,
        )
        await self._store.add(token_id, token)
        await self._changed(token_id)
        return token_id, token

    async def alter(self, token_id: str, change: TokenChange) -> tuple[Token | None, int]:
        """Returns the new token and the time. In force like `create`. Raises KafkaError,
        StoreFault."""
        while True:
            old = await self._store.get(token_id)
            token = None if old is None else _readable(token_id.encode(), old)
            if old is None or token is None:
                # A request with an unknown outcome removed it: workers may still hold it.
                await self._changed(token_id)
                raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
            now = now_ms()
            new = change(token, now)
            if await self._store.replace(token_id, old, new):
                await self._changed(token_id)
                return new, now

    async def _changed(self, token_id: str) -> None:
        await self.refresh(token_id)
        await self._changes.announce(Change("token", token_id))

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    # --- expiry ---

    async def run(self) -> None:
        """End sessions when their tokens expire."""
        while True:
            await asyncio.sleep(CHECK_S)
            self.end_expired(now_ms())

    async def run_sweeps(self) -> None:
        """Remove expired tokens from the store. Only one worker runs this."""
        wait_ms = min(self._interval_ms, FIRST_SWEEP_MS)
        while True:
            await asyncio.sleep(wait_ms / 1000)
            try:
                await self.sweep(now_ms())
            except StoreFault as fault:
                logger.warning("expired delegation tokens wait for the store: %s", fault)
                wait_ms = min(self._interval_ms, FIRST_SWEEP_MS)
            else:
                wait_ms = self._interval_ms

    def end_expired(self, now: int) -> None:
        """End the sessions of tokens that have expired since the last call."""
        if now < self._checked_at:  # the clock was set back: some have not expired after all
            self._next_expiry = now
        self._checked_at = now
        if now < self._next_expiry:
            return
        since, ended, following = self._next_expiry, [], []
        for token_id, token in self._tokens.items():
            if token.expires_at > now:
                following.append(token.expires_at)
            elif token.expires_at >= since:
                ended.append(token_id)
        self._next_expiry = min(following, default=_FAR)
        self._end(ended)

    async def sweep(self, now: int) -> None:
        """Remove the expired tokens from the store. Raises StoreFault."""
        found = {**self._tokens, **self._useless}
        over = [token_id for token_id, token in found.items() if token.is_expired(now)]
        removed = 0
        for at in range(0, len(over), AT_ONCE):
            some = over[at : at + AT_ONCE]
            removed += sum(await asyncio.gather(*(self._sweep(each, now) for each in some)))
        if removed:
            await self._changed("")

    async def _sweep(self, token_id: str, now: int) -> bool:
        """Returns whether workers have to load the token again."""
        old = await self._store.get(token_id)
        if old is None:
            return True  # a sweep removed it, and failed before it could announce that
        token = _readable(token_id.encode(), old)
        # A worker may have renewed it, and not announced that yet.
        if token is None or not token.is_expired(now):
            return False
        if not await self._store.replace(token_id, old, None):
            return False
        if self.on_removed is not None:
            self.on_removed(token_id, token)
        return True


_FAR = 1 << 63


def _readable(name: bytes, value: bytes) -> Token | None:
    try:
        name.decode()  # UnicodeDecodeError is a ValueError
        return read_token(value)
    except ValueError as fault:
        logger.critical("delegation token %r cannot be read or used: %s", name, fault)
        return None


def now_ms() -> int:
    return time.time_ns() // 1_000_000
