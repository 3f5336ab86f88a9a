"""Groups and their offsets in Redis: bytes in, bytes out; what they mean is the group's affair.

A group id may hold any character; in keys a colon is written %3A, so that no id can reach into
another group's keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from broker.errors import StoreRefused
from broker.store import keys
from broker.store.pipe import Pipe, within
from broker.store.streams import CONTROL_TIMEOUT

# A write that a lost connection delivers late must not undo a newer one.
_SAVE = (
    "local at = tonumber(redis.call('HGET', KEYS[1], 'revision') or '-1') "
    "if tonumber(ARGV[1]) <= at then return 0 end "
    "redis.call('HSET', KEYS[1], 'revision', ARGV[1], 'record', ARGV[2]) return 1"
)


class StoredGroup(NamedTuple):
    group_id: str
    record: bytes | None  # None: only offsets were ever committed
    offsets: dict[bytes, bytes]


class GroupStore:
    def __init__(self, control: Pipe) -> None:
        self._control = control

    async def _all(self, *commands: tuple[bytes | str | int, ...]) -> list[Any]:
        """Send commands in one write; raises the first fault."""
        calls = asyncio.gather(*(self._control.call(*words) for words in commands))
        replies: list[Any] = await within(CONTROL_TIMEOUT, calls)
        return replies

    async def load(self, slot: int) -> list[StoredGroup]:
        """Everything of a slot: when a worker starts."""
        (members,) = await self._all(("SMEMBERS", keys.slot(slot)))
        found = []
        for member in members:
            group_id = member.decode()
            record, pairs = await self._all(
                ("HGET", keys.group(group_id), "record"), ("HGETALL", keys.offsets(group_id))
            )
            offsets = dict(zip(pairs[::2], pairs[1::2], strict=True))
            if record is None and not offsets:
                await self._all(("SREM", keys.slot(slot), group_id))  # a removal was cut short
            else:
                found.append(StoredGroup(group_id, record, offsets))
        return found

    async def save(self, slot: int, group_id: str, revision: int, record: bytes) -> None:
        """The index first: what is saved must be found again.

        A record that is newer than this one is left as it is, and that is a fault: whoever asked
        knows less than the store, and must not tell anybody that its record is safe.
        """
        _, saved = await self._all(
            ("SADD", keys.slot(slot), group_id),
            ("EVAL", _SAVE, 1, keys.group(group_id), revision, record),
        )
        if not saved:
            raise StoreRefused(
                f"revision {revision} of group {group_id} is older than what is there"
            )

    async def remove(self, slot: int, group_id: str) -> None:
        """The index last, for the same reason."""
        await self._all(
            ("UNLINK", keys.group(group_id)),
            ("UNLINK", keys.offsets(group_id)),
            ("SREM", keys.slot(slot), group_id),
        )

    async def save_offsets(self, slot: int, group_id: str, offsets: Mapping[bytes, bytes]) -> None:
        pairs = [word for pair in offsets.items() for word in pair]
        await self._all(
            ("SADD", keys.slot(slot), group_id), ("HSET", keys.offsets(group_id), *pairs)
        )

    async def drop_offsets(self, group_id: str, fields: Iterable[bytes]) -> None:
        gone = list(fields)
        if gone:
            await self._all(("HDEL", keys.offsets(group_id), *gone))
