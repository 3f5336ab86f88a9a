"""ACLs in Redis: one hash. Workers hold all of it in memory (access/).

An ACL's text is its field: the same ACL twice is one. The value says who made it, and when.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from moldau.broker.store import keys
from moldau.broker.store.pipe import Pipe, pairs
from moldau.broker.store.scripts import script

_ADD = script("acls_add")
FIELDS_AT_ONCE = 1000


class AclRecord(msgspec.Struct, frozen=True):
    created_by: str
    created_ms: int


_encode = msgspec.msgpack.Encoder().encode


class AclStore:
    def __init__(self, control: Pipe) -> None:
        self._control = control

    async def all(self) -> list[bytes]:
        """The texts of all ACLs."""
        found: list[bytes] = await self._control.ask("HKEYS", keys.ACLS)
        return found

    async def records(self) -> dict[bytes, bytes]:
        """The encoded records of all ACLs, by their text."""
        return pairs(await self._control.ask("HGETALL", keys.ACLS))

    async def add(self, texts: Iterable[str], record: AclRecord) -> None:
        """Add ACLs; those that exist stay as they are."""
        value = _encode(record)
        words = [word for text in texts for word in (text.encode(), value)]
        for at in range(0, len(words), 2 * FIELDS_AT_ONCE):
            some = words[at : at + 2 * FIELDS_AT_ONCE]
            await self._control.ask("EVAL", _ADD, 1, keys.ACLS, *some)

    async def remove(self, texts: Iterable[str]) -> None:
        fields = [text.encode() for text in texts]
        for at in range(0, len(fields), FIELDS_AT_ONCE):
            await self._control.ask("HDEL", keys.ACLS, *fields[at : at + FIELDS_AT_ONCE])
