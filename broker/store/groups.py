"""Groups and their committed offsets in Redis, as bytes: their meaning is known to `group/` only.

Two defences keep a write that a lost connection delivers late from undoing a newer one. Offsets are
written often and with a plain HSET, so stale connections are closed first (`stale_connections.py`).
Records are rare enough to be compared as well: a script refuses a revision that is not newer, and
the identity of a group that was deleted. The field `gone` remembers the identities deleted under
this group id, the last of them for longer than any network holds a packet back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from broker.errors import StoreDown, StoreFault, StoreRefused
from broker.store import keys
from broker.store.pipe import REPLY_TIMEOUT, Pipe, within
from broker.store.resp import command, pairs
from broker.store.stale_connections import StaleConnections

_SAVE = (
    "local gone = redis.call('HGET', KEYS[1], 'gone') "
    "if gone and string.find(gone, ARGV[1], 1, true) then return 0 end "
    "local at = tonumber(redis.call('HGET', KEYS[1], 'revision') or '-1') "
    "if tonumber(ARGV[2]) <= at then return 0 end "
    "redis.call('HSET', KEYS[1], 'identity', ARGV[1], 'revision', ARGV[2], 'record', ARGV[3]) "
    "redis.call('PERSIST', KEYS[1]) return 1"
)
_REMOVE = (
    "local known = redis.call('HGET', KEYS[1], 'identity') "
    "local gone = redis.call('HGET', KEYS[1], 'gone') or '' "
    "if not string.find(gone, ARGV[1], 1, true) then "
    "gone = string.sub(gone .. ARGV[1] .. ' ', -tonumber(ARGV[2])) end "
    "redis.call('HSET', KEYS[1], 'gone', gone) "
    "if known and known ~= ARGV[1] then return 0 end "
    "redis.call('HDEL', KEYS[1], 'identity', 'revision', 'record') "
    "redis.call('EXPIRE', KEYS[1], ARGV[3]) return 1"
)
GONE_BYTES = 512  # of identities, the newest
GONE_SECONDS = 3600


class StoredGroup(NamedTuple):
    """A group as it is stored, not decoded."""

    group_id: str
    record: bytes | None  # None: simple consumers only, no member ever joined
    offsets: dict[bytes, bytes]


class GroupStore:
    def __init__(self, control: Pipe) -> None:
        self._control = control
        self._stale = StaleConnections(control, "groups")

    async def take_over(self, worker: int, workers: int) -> None:
        """Called before anything is loaded: from now on only this worker writes."""
        await self._stale.close_all(worker, workers)

    def _check_sole_writer(self) -> None:
        if not self._stale.are_closed:
            raise StoreDown("a lost connection is not known to be closed yet")

    async def _all(self, *commands: tuple[bytes | str | int, ...]) -> list[Any]:
        """Send commands in one write; raises the first StoreFault."""
        self._check_sole_writer()
        calls = asyncio.gather(*(self._control.call(*words) for words in commands))
        replies: list[Any] = await within(REPLY_TIMEOUT, calls)
        return replies

    async def load(self, slot: int) -> list[StoredGroup]:
        """All groups of a slot, when a worker starts."""
        (members,) = await self._all(("SMEMBERS", keys.slot(slot)))
        found = []
        for member in members:
            group_id = member.decode()
            record, found_offsets = await self._all(
                ("HGET", keys.group(group_id), "record"), ("HGETALL", keys.offsets(group_id))
            )
            offsets = pairs(found_offsets)
            if record is None and not offsets:
                await self._all(("SREM", keys.slot(slot), group_id))  # a removal was interrupted
            else:
                found.append(StoredGroup(group_id, record, offsets))
        return found

    async def save(
        self, slot: int, group_id: str, identity: str, revision: int, record: bytes
    ) -> None:
        """The index first, so that what is saved is found again.

        Raises StoreRefused when the store has a newer record, or the group was deleted: the caller
        is out of date and must not report its record as stored.
        """
        _, saved = await self._all(
            ("SADD", keys.slot(slot), group_id),
            ("EVAL", _SAVE, 1, keys.group(group_id), identity, revision, record),
        )
        if not saved:
            raise StoreRefused(
                f"revision {revision} of group {group_id} is older than what is there"
            )

    async def remove(self, slot: int, group_id: str, identity: str) -> None:
        """The index last, so that an interrupted removal is found again."""
        await self._all(
            ("EVAL", _REMOVE, 1, keys.group(group_id), identity, GONE_BYTES, GONE_SECONDS),
            ("UNLINK", keys.offsets(group_id)),
            ("SREM", keys.slot(slot), group_id),
        )

    async def save_offsets(self, slot: int, group_id: str, offsets: Mapping[bytes, bytes]) -> None:
        self._check_sole_writer()
        words = [word for pair in offsets.items() for word in pair]
        indexed: list[Any] = []
        self._control.send((command("SADD", keys.slot(slot), group_id),), indexed.append)
        await within(REPLY_TIMEOUT, self._control.call("HSET", keys.offsets(group_id), *words))
        if isinstance(indexed[0], StoreFault):
            raise indexed[0]

    async def offset(self, group_id: str, field: bytes) -> bytes | None:
        """One committed offset, whichever worker owns the group."""
        (found,) = await self._all(("HGET", keys.offsets(group_id), field))
        value: bytes | None = found
        return value

    async def drop_offsets(self, group_id: str, fields: Iterable[bytes]) -> None:
        dropped = list(fields)
        if dropped:
            await self._all(("HDEL", keys.offsets(group_id), *dropped))
