"""States of share-partitions in Redis, as bytes: their meaning is known to `share/` only.

**The fence.** A leader takes a share-partition before it hands out records, and again on every new
connection. That begins a *term*, which is part of the name of the key: the state moves to it. A
write is `SET <key with the term> <state> XX`, so it does nothing once another leader has taken the
share-partition, an administrator has changed it, or the group is gone; and neither does a write
that a lost connection delivers late. No epoch is compared, so a write needs no script.

Who coordinates the group writes under the epoch of its slot, as for all that is stored of groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from moldau.broker.errors import SlotNotTaken, StoreDown, StoreFault, StoreFenced, StoreRefused
from moldau.broker.store import keys
from moldau.broker.store.groups import fenced
from moldau.broker.store.pipe import Pipe, bulk
from moldau.broker.store.scripts import script

_TAKE = script("share_take")
_READ = script("share_read")
_REPLACE = script("shares_replace")
_REMOVE = script("shares_remove")

_HEAD = b"*4\r\n$3\r\nSET\r\n"
_TAIL = b"$2\r\nXX\r\n"

Written = Callable[[StoreFault | None], None]


class SharePlace(NamedTuple):
    """A share-partition of some group."""

    topic_id: bytes
    partition: int

    @property
    def field(self) -> str:
        return f"{self.topic_id.hex()}:{self.partition}"


class Term(NamedTuple):
    """What a leader holds of a share-partition: writes are possible under it, on one connection."""

    number: int
    identity: bytes  # of the group
    head: bytes  # the command of a write, up to its value
    connection: int


class TakenShare(NamedTuple):
    term: Term
    is_kept: bool
    """Nobody else has had it since the term that this worker held: its memory is at least as new
    as the state."""
    state: bytes


class ShareStore:
    """The share-partitions of one worker. `on_reconnected` is called when all of them have to be
    taken again."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._connection = 0
        self.on_reconnected: Callable[[], None] | None = None
        pipe.on_up = self._reconnected

    def _reconnected(self) -> None:
        self._connection += 1
        if self.on_reconnected is not None:
            self.on_reconnected()

    # --- leaders ---

    async def take(
        self, slot: int, group_id: str, place: SharePlace, held: Term | None = None
    ) -> TakenShare | None:
        """Begin a term; None: there is no such share group. Raises StoreFault.

        `held` is the last term of this worker, if it still has the memory that belongs to it.
        """
        connection = self._connection
        where = keys.group(slot, group_id), keys.shares(slot, group_id)
        number, identity = (held.number, held.identity) if held is not None else (0, b"")
        reply = await self._pipe.ask(
            "EVAL", _TAKE, len(where), *where, place.field, number, identity
        )
        term, identity, is_kept, state = reply
        if not term:
            return None
        key = keys.share(slot, group_id, place.topic_id, place.partition, term)
        return TakenShare(Term(term, identity, _HEAD + bulk(key), connection), bool(is_kept), state)

    @property
    def is_up(self) -> bool:
        return self._pipe.is_up

    def is_current(self, term: Term) -> bool:
        """Check whether writes under this term may be sent: it began on this connection."""
        return term.connection == self._connection and self._pipe.is_up

    def save(self, term: Term, state: bytes, done: Written) -> None:
        """Write a state, and call `done` with the outcome, in the order of the writes.

        StoreFenced: the term is over. StoreDown: nothing was sent; take it again first. After
        another StoreFault that is no StoreRefused it may have been written or not, until it is
        taken again.
        """
        if term.connection != self._connection:
            # A late write of the connection that was lost could come behind this one.
            fault = StoreDown("the share-partition has to be taken again")
            asyncio.get_running_loop().call_soon(done, fault)
            return

        def finish(reply: Any) -> None:
            if reply is None:
                done(StoreFenced("another worker has taken the share-partition, or it is gone"))
            else:
                done(reply if isinstance(reply, StoreFault) else None)

        self._pipe.send((b"".join((term.head, bulk(state), _TAIL)),), finish)

    # --- the coordinator of the group ---

    async def read(self, slot: int, group_id: str) -> dict[SharePlace, bytes]:
        """Return the states of a group. Raises StoreFault."""
        where = keys.group(slot, group_id), keys.shares(slot, group_id)
        reply = await self._pipe.ask("EVAL", _READ, len(where), *where)
        return {_place(field): state for field, state in zip(reply[::2], reply[1::2], strict=True)}

    async def replace(
        self,
        slot: int,
        epoch: bytes | None,
        group_id: str,
        identity: bytes,
        states: Mapping[SharePlace, bytes],
    ) -> None:
        """Put other states in their place; their leaders are fenced. Raises StoreFault, and
        StoreRefused if there is no share group of this identity."""
        words = [word for place, state in states.items() for word in (place.field, state)]
        if not await self._write(_REPLACE, slot, epoch, group_id, identity, words):
            raise StoreRefused(f"there is no share group {group_id} any more")

    async def remove(
        self,
        slot: int,
        epoch: bytes | None,
        group_id: str,
        identity: bytes,
        topic_ids: Sequence[bytes],
    ) -> list[int]:
        """Remove the states of some topics; returns how many of each. Raises StoreFault."""
        if not topic_ids:
            return []
        words = [topic_id.hex() for topic_id in topic_ids]
        reply = await self._write(_REMOVE, slot, epoch, group_id, identity, words)
        return reply or [0] * len(words)

    async def remove_all(
        self, slot: int, epoch: bytes | None, group_id: str, identity: bytes
    ) -> None:
        """Remove all that is stored of a group's share-partitions. Raises StoreFault."""
        await self._write(_REMOVE, slot, epoch, group_id, identity, ())

    async def _write(
        self,
        source: str,
        slot: int,
        epoch: bytes | None,
        group_id: str,
        identity: bytes,
        words: Sequence[str | bytes],
    ) -> Any:
        """`epoch` is the one under which the slot was taken; None: it was not."""
        if epoch is None:
            raise SlotNotTaken(f"slot {slot} is being taken")
        where = keys.slot(slot), keys.group(slot, group_id), keys.shares(slot, group_id)
        reply = await self._pipe.ask("EVAL", source, len(where), *where, epoch, identity, *words)
        if reply == -1:
            raise fenced(slot)
        return reply


def _place(field: bytes) -> SharePlace:
    topic, _, partition = field.decode().rpartition(":")
    return SharePlace(bytes.fromhex(topic), int(partition))
