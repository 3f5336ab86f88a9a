"""The commands of the lease: which broker serves this database.

The lease is a hash beside the key `moldau:serving`: its token, its end by the store's TIME, the
store id under which it was renewed, and who waits for it. The scripts say what each call may do;
`broker/net/lease.py` is the other half, how long a process may serve by its own clock.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from moldau.broker.errors import StoreFault, StoreFull, StoreRefused
from moldau.broker.store import keys
from moldau.broker.store.pipe import Pipe
from moldau.broker.store.scripts import script

KEEP, AGAIN, TAKE, ASK = "keep", "again", "take", "look"
# Error replies of a server that is up and refuses every write.
_NO_WRITES = ("NOREPLICAS", "MISCONF", "OOM")
# A slow store is no reason to serve nobody: a renewal counts from when it was sent.
RENEW_WITHIN_S = 8.0

SERVE, GIVE_BACK, LOOK = script("lease_serve"), script("lease_give_back"), script("lease_look")


class Verdict(IntEnum):
    YOURS = 0
    ANOTHERS = 1
    WAIT = 2  # the store has changed: who has the lease may keep it
    LOST = 3  # another has it, or had it since


class LeaseState(NamedTuple):
    """What the store says of the lease."""

    verdict: Verdict
    ends_ms: int  # by the store's TIME
    now_ms: int
    holder: bytes  # JSON; empty: nobody


class Claimant(NamedTuple):
    """Who asks for the lease: all processes of one broker have the same token."""

    token: str
    holder: bytes  # JSON that names the broker
    lease_ms: int

    def words(self, mode: str, *, known: bool = False) -> Sequence[bytes | str | int]:
        """The arguments of EVAL."""
        names = (2, keys.LEASE, keys.SERVING)
        return (SERVE, *names, mode, self.token, self.holder, self.lease_ms, int(known))

    def words_to_give_back(self) -> Sequence[bytes | str | int]:
        return (GIVE_BACK, 2, keys.LEASE, keys.SERVING, self.token, self.holder)

    def words_to_look(self) -> Sequence[bytes | str | int]:
        return (LOOK, 1, keys.LEASE, self.token, self.lease_ms)


def new_token() -> str:
    return secrets.token_hex(8)


def read_state(reply: Any) -> LeaseState:
    verdict, ends_ms, now_ms, holder = reply
    return LeaseState(Verdict(verdict), int(ends_ms), int(now_ms), bytes(holder))


def refuses_writes(fault: StoreFault) -> bool:
    """Whether the server is up and takes no writes, of nobody."""
    return isinstance(fault, StoreFull | StoreRefused) and str(fault).startswith(_NO_WRITES)


async def renew(control: Pipe, claimant: Claimant, *, is_over: bool) -> Verdict:
    """Renew the lease of this broker. `is_over`: this process could not do so in time. Raises
    StoreFault."""
    words = claimant.words(AGAIN if is_over else KEEP)
    try:
        return read_state(await control.ask("EVAL", *words, within_s=RENEW_WITHIN_S)).verdict
    except StoreFault as fault:
        if not refuses_writes(fault):
            raise
    words = claimant.words_to_look()
    is_kept = await control.ask("EVAL", *words, within_s=RENEW_WITHIN_S)
    return Verdict.YOURS if is_kept else Verdict.WAIT
