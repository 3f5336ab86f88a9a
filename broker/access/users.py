"""The users of the store, in memory."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping

from moldau.broker.security.accounts import Account, Alteration, Looks, preferred
from moldau.broker.security.sasl import Mechanism
from moldau.broker.security.scram import KnownCredential, no_credential
from moldau.broker.store.topics import Change, TopicStore
from moldau.broker.store.users import SECRET, UserStore, read_account

logger = logging.getLogger("moldau.access")


class NoSuchCredential(Exception):
    pass


class Users:
    """A `CachedTable` for changes of kind "user"."""

    def __init__(self, store: UserStore, changes: TopicStore) -> None:
        self._store = store
        self._changes = changes
        self._accounts: dict[str, Account] = {}
        self._secret = secrets.token_bytes(32)  # until the store has one
        self._looks = Looks({}, self._secret)
        self._loading = asyncio.Lock()
        # Called with the new revisions of changed accounts; 0: the account was removed.
        self.on_changed: list[Callable[[Mapping[str, int]], None]] = []

    # --- looking up ---

    @property
    def accounts(self) -> Mapping[str, Account]:
        return self._accounts

    def revision(self, user: str) -> int:
        """0 if there is no such user."""
        account = self._accounts.get(user)
        return 0 if account is None else account.revision

    def find(self, mechanism: Mechanism, user: str) -> KnownCredential:
        """Returns a credential for every name, known or not: see `no_credential`."""
        # Computed for existing users too: their answer must not come sooner.
        looks = no_credential(mechanism, self._secret, user, self._looks.shape(mechanism, user))
        account = self._accounts.get(user)
        credential = None if account is None else account.credentials.get(mechanism)
        if account is None or credential is None:
            return KnownCredential(looks, 0)
        return KnownCredential(credential, account.revision)

    def preferred(self, user: str) -> Mechanism:
        """The mechanism that checks a password of this user, known or not."""
        account, looks = self._accounts.get(user), self._looks.preferred(user)
        return looks if account is None else preferred(account.credentials)

    # --- keeping in step ---

    async def load(self) -> None:
        # One at a time: a load that began before a change must not replace a later one.
        async with self._loading:
            stored = await self._store.all()
            self._secret = stored.pop(SECRET, self._secret)
            accounts: dict[str, Account] = {}
            for name, value in stored.items():
                try:
                    accounts[name.decode()] = read_account(value)
                except ValueError as fault:
                    logger.critical("user %r cannot be read: it cannot log in: %s", name, fault)
            before, self._accounts = self._accounts, accounts
            self._looks = Looks(accounts, self._secret)
        changed = {
            name: self.revision(name)
            for name in before.keys() | accounts.keys()
            if before.get(name) != accounts.get(name)
        }
        if changed:
            for callback in self.on_changed:
                callback(changed)

    # --- changing ---

    async def alter(self, name: str, alteration: Alteration) -> None:
        """The change is in force on this worker on return, on others when they have applied it.
        Raises NoSuchCredential, StoreFault."""
        while True:
            old = await self._store.get(name)
            account = _readable(old)
            try:
                new = alteration.apply(account, time.time_ns() // 1_000_000)
            except KeyError:
                raise NoSuchCredential from None
            if await self._store.replace(name, old, new, self._secret):
                break
        await self.load()
        await self._changes.announce(Change("user", name))


def _readable(value: bytes | None) -> Account | None:
    """None for an account that cannot be read: it is replaced."""
    try:
        return None if value is None else read_account(value)
    except ValueError:
        return None
