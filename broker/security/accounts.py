"""A user's account: data to check the password with, by mechanism. Never the password itself."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from operator import itemgetter

import msgspec

from moldau.broker.security.sasl import Mechanism
from moldau.broker.security.scram import ScramCredential, Shape, place_of, shape_of

# The shape of unknown users' credentials while there is no user.
DEFAULT_SHAPE = Shape(32, 16384)


class Account(msgspec.Struct, frozen=True):
    """An account as it is stored. Times are in milliseconds since 1970."""

    credentials: dict[Mechanism, ScramCredential]
    created: int
    changed: int

    @property
    def revision(self) -> int:
        """Changes with every alteration: sessions of an earlier revision are over."""
        return self.changed


class Alteration(msgspec.Struct, frozen=True):
    """A change of one user's credentials."""

    set: dict[Mechanism, ScramCredential] = {}
    remove: frozenset[Mechanism] = frozenset()

    def apply(self, account: Account | None, now: int) -> Account | None:
        """Apply a change. Returns None if no credential is left. Raises KeyError if one to be
        removed is missing."""
        credentials = dict(account.credentials) if account is not None else {}
        for mechanism in self.remove:
            del credentials[mechanism]
        credentials.update(self.set)
        if not credentials:
            return None
        if account is None:
            return Account(credentials, now, now)
        # It is higher than the last one, whatever the clock says.
        return Account(credentials, account.created, max(now, account.changed + 1))


class Looks:
    """How existing users look to a client, and which of them an unknown name imitates.

    An unknown name imitates the same user for every mechanism, since the credentials of a user
    usually match each other.
    """

    def __init__(self, accounts: Mapping[str, Account], secret: bytes) -> None:
        self._secret = secret
        self._places: dict[Mechanism, list[bytes]] = {}
        self._shapes: dict[Mechanism, list[Shape]] = {}
        self._all: list[tuple[bytes, Mechanism]] = []
        for place, name in sorted((place_of(secret, name), name) for name in accounts):
            credentials = accounts[name].credentials
            for mechanism, credential in credentials.items():
                self._places.setdefault(mechanism, []).append(place)
                self._shapes.setdefault(mechanism, []).append(shape_of(credential))
            self._all.append((place, preferred(credentials)))

    def shape(self, mechanism: Mechanism, user: str) -> Shape:
        places = self._places.get(mechanism)
        if not places:
            return DEFAULT_SHAPE
        at = bisect_left(places, place_of(self._secret, user)) % len(places)
        return self._shapes[mechanism][at]

    def preferred(self, user: str) -> Mechanism:
        """Return the credential with which a password of this nonexistent user is checked."""
        if not self._all:
            return Mechanism.SCRAM_SHA_256
        at = bisect_left(self._all, place_of(self._secret, user), key=itemgetter(0))
        return self._all[at % len(self._all)][1]


def preferred(credentials: Mapping[Mechanism, ScramCredential]) -> Mechanism:
    """Return the cheaper one of the two."""
    if Mechanism.SCRAM_SHA_256 in credentials or not credentials:
        return Mechanism.SCRAM_SHA_256
    return Mechanism.SCRAM_SHA_512
