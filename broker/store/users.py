"""Users in Redis: one hash, replaced field by field. Workers hold all of it in memory (access/).

The field "" is no user: it holds the secret from which the answers to unknown users are derived
(security/scram.py). All workers have the same one, or their answers would differ.
"""

from __future__ import annotations

import msgspec

from broker.security.accounts import Account
from broker.store import keys
from broker.store.pipe import Pipe
from broker.store.resp import pairs

SECRET = b""

# In a full store too: access must be possible to take away at any time.
_REPLACE = (
    "#!lua flags=allow-oom\n"
    "if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end "
    "redis.call('HSETNX', KEYS[1], '', ARGV[4]) "
    "if ARGV[3] == '' then redis.call('HDEL', KEYS[1], ARGV[1]) "
    "else redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end return 1"
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Account).decode


class UserStore:
    def __init__(self, control: Pipe) -> None:
        self._control = control

    async def all(self) -> dict[bytes, bytes]:
        """Encoded, by name; with the secret, if there ever was a user."""
        return pairs(await self._control.ask("HGETALL", keys.USERS))

    async def get(self, name: str) -> bytes | None:
        value: bytes | None = await self._control.ask("HGET", keys.USERS, name.encode())
        return value

    async def replace(
        self, name: str, old: bytes | None, new: Account | None, secret: bytes
    ) -> bool:
        """False when it is no longer `old`. `secret` becomes the secret if there is none."""
        value = b"" if new is None else _encode(new)
        words = (name.encode(), old or b"", value, secret)
        return bool(await self._control.ask("EVAL", _REPLACE, 1, keys.USERS, *words))


def read_account(value: bytes) -> Account:
    """Raises ValueError."""
    return _decode(value)
