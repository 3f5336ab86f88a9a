"""Delegation tokens in Redis: one hash, replaced field by field. Workers hold all of it in memory
(access/). The HMAC that a client logs in with is not stored: it follows from the id and from the
secret key, which is kept outside of the store."""

from __future__ import annotations

import msgspec

from moldau.broker.security.tokens import Token
from moldau.broker.store import keys
from moldau.broker.store.pipe import Pipe, pairs
from moldau.broker.store.scripts import script

_CHANGE = script("field_change")

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(Token).decode


class TokenStore:
    def __init__(self, control: Pipe) -> None:
        self._control = control

    async def all(self) -> dict[bytes, bytes]:
        """The encoded tokens, by id."""
        return pairs(await self._control.ask("HGETALL", keys.TOKENS))

    async def get(self, token_id: str) -> bytes | None:
        value: bytes | None = await self._control.ask("HGET", keys.TOKENS, token_id.encode())
        return value

    async def add(self, token_id: str, token: Token) -> None:
        await self._control.ask("HSETNX", keys.TOKENS, token_id.encode(), _encode(token))

    async def replace(self, token_id: str, old: bytes, new: Token | None) -> bool:
        """Compare-and-set: False if the stored token is not `old`. None removes it."""
        words = (token_id.encode(), old, b"" if new is None else _encode(new))
        return bool(await self._control.ask("EVAL", _CHANGE, 1, keys.TOKENS, *words))


def read_token(value: bytes) -> Token:
    """Decode a token. Raises ValueError."""
    return _decode(value)
