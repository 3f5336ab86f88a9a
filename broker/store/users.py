"""Users in Redis: one hash, replaced field by field. Workers hold all of it in memory (access/).

The field "" is no user: it holds the secret from which the answers to unknown users are derived
(security/scram.py). All workers share it; otherwise their answers would differ.
"""

from __future__ import annotations

import msgspec

from moldau.broker.security.accounts import Account
from moldau.broker.store import keys
from moldau.broker.store.pipe import Pipe, pairs
from moldau.broker.store.scripts import script

SECRET = b""

_CHANGE = script("user_change")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Account).decode


class UserStore:
    def __init__(self, control: Pipe) -> None:
        self._control = control

    async def all(self) -> dict[bytes, bytes]:
        """The encoded accounts by name, and the secret if there ever was a user."""
        return pairs(await self._control.ask("HGETALL", keys.USERS))

    async def get(self, name: str) -> bytes | None:
        value: bytes | None = await self._control.ask("HGET", keys.USERS, name.encode())
        return value

    async def replace(
        self, name: str, old: bytes | None, new: Account | None, secret: bytes
    ) -> bool:
        """Compare-and-set: False if the stored account is not `old`. `secret` is stored if there is
        none."""
        value = b"" if new is None else _encode(new)
        words = (name.encode(), old or b"", value, secret)
        return bool(await self._control.ask("EVAL", _CHANGE, 1, keys.USERS, *words))


def read_account(value: bytes) -> Account:
    """Decode an account. Raises ValueError."""
    return _decode(value)
