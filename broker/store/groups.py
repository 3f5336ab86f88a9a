"""Groups and their offsets in Redis: bytes in, bytes out; what they mean is the group's affair.

A group id may hold any character; in keys a colon is written %3A, so that no id can reach into
another group's keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from broker.errors import StoreDown, StoreFault, StoreRefused
from broker.store import keys
from broker.store.pipe import Pipe, within
from broker.store.resp import command
from broker.store.stale_connections import StaleConnections
from broker.store.streams import CONTROL_TIMEOUT

# Offsets are written often and plainly: nothing comes late because former connections are closed
# (former.py). Records are rare enough to be compared as well, wherever a write comes from:
# a write that a lost connection delivers late must not undo a newer one: neither a newer revision,
# nor a deletion, nor what came under the same id after the deletion. So a group's identity is
# compared where it is written, and `gone` remembers those that were deleted, the last of them for
# longer than a network holds anything back.
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
GONE_BYTES = 512  # of identities
GONE_SECONDS = 3600


class StoredGroup(NamedTuple):
    group_id: str
    record: bytes | None  # None: only offsets were ever committed
    offsets: dict[bytes, bytes]


class GroupStore:
    def __init__(self, control: Pipe) -> None:
        self._control = control
        self._stale = StaleConnections(control, "groups")

    async def take_over(self, worker: int, workers: int) -> None:
        """Before anything is loaded: from now on only this worker writes."""
        await self._stale.close_all(worker, workers)

    def _check_alone(self) -> None:
        if not self._stale.are_closed:
            raise StoreDown("a lost connection is not known to be closed yet")

    async def _all(self, *commands: tuple[bytes | str | int, ...]) -> list[Any]:
        """Send commands in one write; raises the first fault."""
        self._check_alone()
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

    async def save(
        self, slot: int, group_id: str, identity: str, revision: int, record: bytes
    ) -> None:
        """The index first: what is saved must be found again.

        A record that is newer than this one is left as it is, and a group that was deleted stays
        deleted. That is a fault: whoever asked knows less than the store, and must not tell
        anybody that its record is safe.
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
        """The index last, for the same reason."""
        await self._all(
            ("EVAL", _REMOVE, 1, keys.group(group_id), identity, GONE_BYTES, GONE_SECONDS),
            ("UNLINK", keys.offsets(group_id)),
            ("SREM", keys.slot(slot), group_id),
        )

    async def save_offsets(self, slot: int, group_id: str, offsets: Mapping[bytes, bytes]) -> None:
        self._check_alone()
        pairs = [word for pair in offsets.items() for word in pair]
        indexed: list[Any] = []
        self._control.send((command("SADD", keys.slot(slot), group_id),), indexed.append)
        await within(CONTROL_TIMEOUT, self._control.call("HSET", keys.offsets(group_id), *pairs))
        if isinstance(indexed[0], StoreFault):
            raise indexed[0]

    async def offset(self, group_id: str, field: bytes) -> bytes | None:
        """One committed offset, whichever worker the group belongs to."""
        (found,) = await self._all(("HGET", keys.offsets(group_id), field))
        value: bytes | None = found
        return value

    async def drop_offsets(self, group_id: str, fields: Iterable[bytes]) -> None:
        gone = list(fields)
        if gone:
            await self._all(("HDEL", keys.offsets(group_id), *gone))
