"""A user's account: what is known of the password, by mechanism. Never the password itself."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from broker.security.sasl import Mechanism
from broker.security.scram import ScramCredential


class Account(msgspec.Struct, frozen=True):
    """As it is in the store. Times in milliseconds since 1970."""

    credentials: dict[Mechanism, ScramCredential]
    created: int
    changed: int

    @property
    def revision(self) -> int:
        """Another one after every change: sessions of an earlier one are over."""
        return self.changed


class Alteration(msgspec.Struct, frozen=True):
    """What becomes of one user's credentials."""

    set: dict[Mechanism, ScramCredential] = {}
    remove: frozenset[Mechanism] = frozenset()

    def apply(self, account: Account | None, now: int) -> Account | None:
        """None: there is no such user any more. Raises KeyError if one to be removed is missing."""
        credentials = dict(account.credentials) if account is not None else {}
        for mechanism in self.remove:
            del credentials[mechanism]
        credentials.update(self.set)
        if not credentials:
            return None
        if account is None:
            return Account(credentials, now, now)
        # Above the last one, whatever the clock says.
        return Account(credentials, account.created, max(now, account.changed + 1))


def shapes(accounts: Iterable[Account]) -> dict[Mechanism, list[tuple[int, int]]]:
    """How credentials look from outside: bytes of salt and iterations, by mechanism."""
    found: dict[Mechanism, set[tuple[int, int]]] = {}
    for account in accounts:
        for mechanism, credential in account.credentials.items():
            shape = (len(credential.salt), credential.iterations)
            found.setdefault(mechanism, set()).add(shape)
    return {mechanism: sorted(each) for mechanism, each in found.items()}
