"""Groups and their committed offsets in Redis, as bytes: their meaning is known to `group/` only.

**The fence.** The hash `{moldau:slot:<n>}` names the owner of a slot and its epoch. A worker takes
its slots, which raises the epoch, before it loads them and again on every new connection. Every
write is a script that compares the epoch first. So a write that a lost connection delivers late is
refused, and so is every write of a worker that was replaced while it slept. Epochs are taken from
the store's clock: a store that lost the last of them never gives the same one twice.

Records are compared as well: a revision that is not newer is refused, and the identity of a group
that was deleted. The field `gone` remembers the identities deleted under this group id, the last of
them for longer than any network holds a packet back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from moldau.broker.errors import SlotNotTaken, StoreDown, StoreFault, StoreFenced, StoreRefused
from moldau.broker.store import keys
from moldau.broker.store.pipe import REPLY_TIMEOUT, Pipe, command, pairs, resolve, within
from moldau.broker.store.scripts import script, sha1

# A group's offsets have two kinds of fields. `<topic>:<partition>` holds what is committed.
# `~<producer id>:<topic>:<partition>` holds what an open transaction commits, as
# `<number>:<order>:<offset>`; no topic's name begins with a tilde. An empty offset was overtaken
# by a later commit. It still makes the partition unstable until the transaction's marker arrives,
# which then leaves the committed offset alone.
#
# The script decides what a marker commits, not the worker: only the store knows in which order
# commits and markers arrived, and which of them it refused.
TAKE = script("slot_take")
RAISE_TOP = script("slot_raise_top")
SAVE = script("group_save")
REMOVE = script("group_remove")
COMMIT = script("offsets_commit")
COMMIT_SHA = sha1(COMMIT)
OVERTAKE = script("offsets_overtake")
DROP = script("offsets_drop")
END = script("offsets_end")

GONE_BYTES = 512  # of identities, the newest
GONE_SECONDS = 3600
MEMBER = b"m:"  # begins the field of a member of the consumer protocol
FENCED = -1  # what scripts return instead of writing
_NO_EPOCH = b"none"

Written = Callable[[StoreFault | None], None]


def fenced(slot: int) -> StoreFenced:
    return StoreFenced(f"slot {slot} has been taken by another worker, or the store forgot it")


class StoredGroup(NamedTuple):
    """A group as it is stored, not decoded."""

    group_id: str
    record: bytes | None  # None: simple consumers only, no member ever joined
    offsets: dict[bytes, bytes]
    members: tuple[bytes, ...] = ()  # of a group of the consumer protocol


class StoredFacts(NamedTuple):
    """What is stored of a group, for a worker to compare with its memory."""

    identity: bytes | None
    revision: int
    offsets: dict[bytes, bytes]


class Taken(NamedTuple):
    """The outcome of taking a slot."""

    epoch: int  # 0: not taken, it has another owner
    before: int  # the epoch it had; 0: none
    min_generation: int  # no group begins one below it
    top: int  # the highest generation that was stored of one of them


class GroupStore:
    """Groups and slots of one worker. `on_reconnected` is called when slots have to be
    re-acquired."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        pipe.on_up = self._reconnected
        self._held: dict[int, int] = {}  # slot -> the epoch under which it was last taken
        self._min_generations: dict[int, int] = {}
        self._tops: dict[int, int] = {}
        self._taken: dict[int, bytes] = {}  # slot -> the same, if taken on this connection
        self._waiting: dict[int, list[asyncio.Future[bytes]]] = {}
        self._newest: dict[str, int] = {}  # group -> number of its last commit in flight
        self._commits = 0
        self.on_reconnected: Callable[[], None] | None = None

    @property
    def is_up(self) -> bool:
        return self._pipe.is_up

    async def wait_up(self) -> None:
        await self._pipe.wait_up()

    @property
    def store_id(self) -> bytes:
        """The store id that the present connection has read."""
        return self._pipe.store_id

    # --- owning slots ---

    def _reconnected(self) -> None:
        self._taken.clear()
        if self.on_reconnected is not None:
            self.on_reconnected()

    def held(self, slot: int) -> int:
        """The epoch under which this worker holds the slot; 0: it does not."""
        return self._held.get(slot, 0)

    def taken(self, slot: int) -> bytes | None:
        """The epoch that writes compare; None: the slot is not taken on this connection."""
        return self._taken.get(slot)

    def min_generation(self, slot: int) -> int:
        """The lowest generation that groups of the slot may begin."""
        return self._min_generations.get(slot, 0)

    async def note_generation(self, slot: int, generation: int) -> None:
        """Note the highest generation of the groups that were loaded, because earlier versions did
        not note it. Raises StoreFault."""
        if self._tops.get(slot, 0) < generation:
            await self._write(slot, RAISE_TOP, (), generation)

    async def take(self, slots: Sequence[int], owner: str) -> dict[int, Taken]:
        """Acquire slots; re-acquire those that no other owner has taken."""
        if not slots:
            return {}
        store_id = self._pipe.store_id
        for slot in slots:  # a write under the old epoch would come after it
            self._taken.pop(slot, None)
        calls = [
            ("EVAL", TAKE, 1, keys.slot(slot), owner, self.held(slot), store_id) for slot in slots
        ]
        # Fenced off, but from now on the store knows the script of commits by its hash.
        where = [name(slots[0]) for name in (keys.slot, keys.groups, keys.slot)]
        replies = await self._all(*calls, ("EVAL", COMMIT, 3, *where, _NO_EPOCH))
        outcome = {slot: Taken(*reply) for slot, reply in zip(slots, replies[:-1], strict=True)}
        for slot, taken in outcome.items():
            if taken.epoch:
                self._held[slot] = taken.epoch
                self._min_generations[slot], self._tops[slot] = taken.min_generation, taken.top
                self._taken[slot] = b"%d" % taken.epoch
                for waiting in self._waiting.pop(slot, ()):
                    resolve(waiting, self._taken[slot])
        return outcome

    def forget(self, slot: int) -> None:
        """Give up the slot: writes that wait for it fail."""
        self._held.pop(slot, None)
        self._taken.pop(slot, None)
        for waiting in self._waiting.pop(slot, ()):
            resolve(waiting, fenced(slot))

    async def _epoch(self, slot: int) -> bytes:
        """The epoch of a slot; waits until the slot is taken on this connection."""
        epoch = self._taken.get(slot)
        if epoch is not None:
            return epoch
        if not self._pipe.is_up:
            raise StoreDown("there is no connection to take the slot of a group")
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(slot, []).append(waiting)
        taken: bytes = await within(REPLY_TIMEOUT, waiting)
        return taken

    # --- commands ---

    async def _all(self, *commands: Sequence[bytes | str | int]) -> list[Any]:
        """Send commands in one write; raises the first StoreFault."""
        calls = asyncio.gather(*(self._pipe.call(*words) for words in commands))
        replies: list[Any] = await within(REPLY_TIMEOUT, calls)
        return replies

    async def _write(
        self, slot: int, script: str, names: Sequence[bytes], *words: bytes | str | int
    ) -> int:
        """Run a script that compares the epoch. Raises StoreFenced."""
        epoch = await self._epoch(slot)
        where = (keys.slot(slot), *names)
        outcome: int = await self._pipe.ask("EVAL", script, len(where), *where, epoch, *words)
        if outcome < 0:
            raise fenced(slot)
        return outcome

    def begin(
        self,
        script: str,
        slot: int,
        names: Sequence[bytes],
        words: Sequence[bytes | str | int],
        done: Written,
    ) -> None:
        """Run a script that compares the epoch and writes one record; call `done` with the outcome.
        A task for each write would cost more than the write.

        StoreRefused: the store has a newer record. StoreFenced, SlotNotTaken: the slot has to be
        taken again first.
        """
        epoch = self._taken.get(slot)
        if epoch is None:
            fault = SlotNotTaken(f"slot {slot} is being taken")
            asyncio.get_running_loop().call_soon(done, fault)
            return
        given = (1 + len(names), keys.slot(slot), *names, epoch, *words)

        def finish(reply: Any) -> None:
            # One write of a record at a time: sent again, it cannot undo a newer one.
            if isinstance(reply, StoreRefused) and "NOSCRIPT" in str(reply):
                self._pipe.send((command("EVAL", script, *given),), finish)
            elif isinstance(reply, StoreFault):
                done(reply)
            elif reply < 0:
                done(fenced(slot))
            elif reply == 0:
                done(StoreRefused("the store has a newer record"))
            else:
                done(None)

        self._pipe.send((command("EVALSHA", sha1(script), *given),), finish)

    # --- groups ---

    async def load(self, slot: int) -> list[StoredGroup]:
        """All groups of a slot that was taken."""
        found = []
        for group_id in await self.index(slot):
            group = await self.load_group(slot, group_id)
            if group.record is None and not group.offsets:
                await self.remove(slot, group_id, "")  # version 0.2 was interrupted removing it
            else:
                found.append(group)
        return found

    async def load_group(self, slot: int, group_id: str) -> StoredGroup:
        """Load one group, after all writes that were sent before."""
        found_group, found_offsets = await self._all(
            ("HGETALL", keys.group(slot, group_id)),
            ("HGETALL", keys.offsets(slot, group_id)),
        )
        fields = pairs(found_group)
        members = tuple(data for name, data in fields.items() if name.startswith(MEMBER))
        return StoredGroup(group_id, fields.get(b"record"), pairs(found_offsets), members)

    async def index(self, slot: int) -> list[str]:
        """The ids of the groups of a slot."""
        return [name.decode() for name in await self._pipe.ask("SMEMBERS", keys.groups(slot))]

    async def facts(self, groups: Iterable[tuple[int, str]]) -> list[StoredFacts]:
        """Read what is stored of groups, each given by slot and id."""
        replies = await self._all(
            *(
                words
                for slot, group_id in groups
                for words in (
                    ("HMGET", keys.group(slot, group_id), "identity", "revision"),
                    ("HGETALL", keys.offsets(slot, group_id)),
                )
            )
        )
        return [
            StoredFacts(identity, int(revision or 0), pairs(offsets))
            for (identity, revision), offsets in zip(replies[::2], replies[1::2], strict=True)
        ]

    def save(
        self,
        slot: int,
        group_id: str,
        identity: str,
        revision: int,
        record: bytes,
        members: Mapping[bytes, bytes | None],
        done: Written,
        *,
        generation: int = 0,
        whole: bool = True,
    ) -> None:
        """Save a group; see `begin`. It is refused as well when the group was deleted: the caller
        is out of date and must not report its record as stored.

        `members`: fields that changed, None for those that are gone. `whole`: there are no others.
        """
        if not self._pipe.is_up:
            fault = StoreDown("there is no connection to save a group")
            asyncio.get_running_loop().call_soon(done, fault)
            return
        names = (keys.groups(slot), keys.group(slot, group_id))
        gone = [field for field, data in members.items() if data is None]
        words: list[bytes | str | int] = [group_id, identity, revision, record, generation]
        words += (1 if whole else 0, len(gone), *gone)
        for field, data in members.items():
            if data is not None:
                words += (field, data)
        self.begin(SAVE, slot, names, words, done)

    async def remove(self, slot: int, group_id: str, identity: str) -> None:
        """Remove the group and its offsets, unless there is a newer group with that id."""
        names = (keys.groups(slot), keys.group(slot, group_id), keys.offsets(slot, group_id))
        words = (group_id, identity, GONE_BYTES, GONE_SECONDS)
        await self._write(slot, REMOVE, names, *words)

    # --- offsets ---

    async def save_offsets(
        self,
        slot: int,
        group_id: str,
        offsets: Mapping[bytes, bytes],
        overtaken: Sequence[bytes] = (),
    ) -> None:
        """Nothing is awaited before the write: see `Groups.check_commit`.

        `overtaken`: fields of pending offsets that these ones replace, where they are there.
        """
        if overtaken:
            words: list[bytes | str | int] = [group_id, len(overtaken), *overtaken]
            words += (word for pair in offsets.items() for word in pair)
            where = (keys.groups(slot), keys.offsets(slot, group_id))
            await self._change_offsets(slot, group_id, OVERTAKE, where, *words)
            return
        epoch = self._epoch_now(slot)
        number = self._begin_change(group_id)
        fields = b"".join(
            b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(field), field, len(value), value)
            for field, value in offsets.items()
        )
        count = 8 + 2 * len(offsets)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def finish(reply: Any) -> None:
            is_newest = self._newest.get(group_id) == number
            # Behind a newer commit of the group it would undo that one: then the client repeats it.
            if is_newest and isinstance(reply, StoreRefused) and "NOSCRIPT" in str(reply):
                again = _commit_head(slot, group_id, epoch, "EVAL", COMMIT)
                self._pipe.send((b"*%d\r\n%b%b" % (count, again, fields),), finish)
                return
            if is_newest:
                del self._newest[group_id]
            resolve(future, reply)

        head = _commit_head(slot, group_id, epoch)
        self._pipe.send((b"*%d\r\n%b%b" % (count, head, fields),), finish)
        if await within(REPLY_TIMEOUT, future) < 0:
            raise fenced(slot)

    async def end_offsets(
        self,
        slot: int,
        group_id: str,
        number: int,
        partitions: Sequence[tuple[bytes, bytes, Sequence[bytes]]],
        *,
        commit: bool,
    ) -> list[tuple[int, bytes | None]]:
        """Apply a marker to the pending offsets of one producer; `END` says how.

        For each partition: its field, the pending one, and those of other producers. Nothing is
        awaited before the write.
        """
        if not partitions:
            return []
        words: list[bytes | int] = []
        for field, own, others in partitions:
            words += (field, own, len(others), *others)
        where = (keys.offsets(slot, group_id),)
        reply = await self._change_offsets(
            slot, group_id, END, where, number, 1 if commit else 0, *words
        )
        return list(zip(reply[::2], reply[1::2], strict=True))

    async def _change_offsets(
        self,
        slot: int,
        group_id: str,
        script: str,
        names: Sequence[bytes],
        *words: bytes | str | int,
    ) -> Any:
        epoch = self._epoch_now(slot)
        number = self._begin_change(group_id)
        where = (keys.slot(slot), *names)
        try:
            reply = await self._pipe.ask("EVAL", script, len(where), *where, epoch, *words)
        finally:
            if self._newest.get(group_id) == number:
                del self._newest[group_id]
        if reply == FENCED:
            raise fenced(slot)
        return reply

    def _epoch_now(self, slot: int) -> bytes:
        epoch = self._taken.get(slot)
        if epoch is None:
            raise SlotNotTaken(f"slot {slot} is being taken")
        return epoch

    def _begin_change(self, group_id: str) -> int:
        """Begin a change of offsets: no earlier one of the group may be sent again after it."""
        self._commits += 1
        self._newest[group_id] = self._commits
        return self._commits

    async def offset(self, slot: int, group_id: str, field: bytes) -> bytes | None:
        """Read one committed offset, whichever worker owns the group."""
        value: bytes | None = await self._pipe.ask("HGET", keys.offsets(slot, group_id), field)
        return value

    async def drop_offsets(self, slot: int, group_id: str, fields: Iterable[bytes]) -> None:
        dropped = list(fields)
        if dropped:
            await self._write(slot, DROP, (keys.offsets(slot, group_id),), *dropped)


@lru_cache(maxsize=8192)  # most groups commit again and again
def _commit_head(
    slot: int, group_id: str, epoch: bytes, how: str = "EVALSHA", script: str = COMMIT_SHA
) -> bytes:
    """The command of a commit from its name to the group id, without the number of words."""
    words = (keys.slot(slot), keys.groups(slot), keys.offsets(slot, group_id), epoch, group_id)
    return command(how, script, 3, *words).partition(b"\r\n")[2]
