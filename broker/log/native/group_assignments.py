"""The members of groups that read native topics, shared between workers.

The worker that coordinates a group saves which members have which native partitions, before they
get their assignment; every worker reads it when it is announced. Consumers of members that have
left are removed from the streams once they have nothing pending.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

import msgspec

from moldau.broker.errors import StoreFault
from moldau.broker.group.views import Owners
from moldau.broker.store.native import NativeStreams
from moldau.broker.store.topics import Change, TopicStore
from moldau.broker.topics.topics import Topics

logger = logging.getLogger("moldau.log")


AssignedPartition = tuple[str, int]  # topic and partition


class AssignedMember(msgspec.Struct, frozen=True, array_like=True):
    """A member of a group and the native partitions it is assigned."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[AssignedPartition, ...]


class Owner(NamedTuple):
    group: str
    member_id: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[AssignedMember, ...]).decode


def encode_members(readers: Iterable[AssignedMember]) -> bytes:
    return _encode(tuple(readers))


def decode_members(data: bytes) -> tuple[AssignedMember, ...]:
    return _decode(data)


class Members:
    """The members of all groups, by what a Fetch reveals of its sender."""

    def __init__(self) -> None:
        self._readers: dict[str, tuple[AssignedMember, ...]] = {}
        self._owners: dict[tuple[AssignedPartition, str, str], list[Owner]] = {}

    def readers(self, group: str) -> tuple[AssignedMember, ...]:
        return self._readers.get(group, ())

    def update(self, group: str, readers: tuple[AssignedMember, ...]) -> None:
        for reader in self._readers.pop(group, ()):
            for partition in reader.partitions:
                key = (partition, reader.client_id, reader.host)
                left = [owner for owner in self._owners.get(key, ()) if owner.group != group]
                if left:
                    self._owners[key] = left
                else:
                    self._owners.pop(key, None)
        if readers:
            self._readers[group] = readers
        for reader in readers:
            for partition in reader.partitions:
                key = (partition, reader.client_id, reader.host)
                self._owners.setdefault(key, []).append(Owner(group, reader.member_id))

    def replace(self, everything: dict[str, tuple[AssignedMember, ...]]) -> None:
        for group in self._readers.keys() - everything.keys():
            self.update(group, ())
        for group, readers in everything.items():
            self.update(group, readers)

    def owner(self, partition: AssignedPartition, client_id: str, host: str) -> Owner | None:
        """The member this must be; None when none or several could be."""
        found = self._owners.get((partition, client_id, host))
        return found[0] if found is not None and len(found) == 1 else None


class GroupAssignments:
    def __init__(self, topics: Topics, store: TopicStore, native: NativeStreams) -> None:
        self._topics = topics
        self._store = store
        self._native = native
        self.members = Members()
        self.on_changed: Callable[[str], None] = lambda group: None

    async def load(self) -> None:
        """Read all of it: at start, and when changes may have been missed."""
        saved = await self._native.all_members()
        self.members.replace({group: decode_members(data) for group, data in saved.items()})

    async def refresh(self, group: str) -> None:
        data = await self._native.members(group)
        readers = () if data is None else decode_members(data)
        if readers != self.members.readers(group):  # not if this worker saved it
            self.members.update(group, readers)
            self.on_changed(group)

    async def try_load(self) -> bool:
        try:
            await self.load()
        except StoreFault as fault:
            logger.warning("members of groups that read native topics are not known: %s", fault)
            return False
        return True

    # --- on the worker that coordinates the group ---

    def stored(self, group: str, owners: Owners | None) -> Coroutine[Any, Any, None] | None:
        """A rebalance is over, or a group is gone: share what it means for native topics. Returns
        None if it means nothing for them."""
        is_concerned = owners is None or self.members.readers(group) or self._may_be_native(owners)
        return self._share(group, owners) if is_concerned else None

    def _may_be_native(self, owners: Owners) -> bool:
        if owners.topics is None:
            return True
        topics = map(self._topics.get, owners.topics)
        return any(topic is None or topic.native for topic in topics)

    async def _share(self, group: str, owners: Owners | None) -> None:
        before = self.members.readers(group)
        try:
            now = tuple(await self._readers(owners)) if owners is not None else ()
            if now != before:
                await self._native.save_members(group, encode_members(now) if now else None)
                self.members.update(group, now)
                self.on_changed(group)
                await self._store.announce(Change("members", group))
                await self._remove_departed(group, before, now)
            if owners is None:
                await self._destroy(group)
        except StoreFault as fault:
            # Reading goes on without it; Redis just does not show the readers.
            logger.warning(
                "group %s: its readers of native topics are not shared: %s", group, fault
            )

    async def _readers(self, owners: Owners) -> list[AssignedMember]:
        names, members = owners.topics, None
        if names is None:
            members = owners.of_members()
            names = frozenset(topic for one in members for topic, _ in one.partitions)
        native = {name for name in names if await self._is_native(name)}
        if not native:
            return []
        readers = []
        for one in owners.of_members() if members is None else members:
            mine = tuple(partition for partition in one.partitions if partition[0] in native)
            if mine:
                readers.append(AssignedMember(one.member_id, one.client_id, one.client_host, mine))
        return readers

    async def _is_native(self, name: str) -> bool:
        # Members may know a topic before this worker does.
        topic = await self._topics.find(name)
        return topic is not None and topic.native

    async def _remove_departed(
        self, group: str, before: Iterable[AssignedMember], now: Iterable[AssignedMember]
    ) -> None:
        """A partition has one reader: remove members that do not have it any more."""
        kept = {(reader.member_id, assigned) for reader in now for assigned in reader.partitions}
        for reader in before:
            for name, number in reader.partitions:
                topic = self._topics.get(name)
                is_kept = (reader.member_id, (name, number)) in kept
                if not is_kept and topic is not None and topic.native:
                    key = topic.key(number)
                    await self._native.remove_consumers(key, group, [reader.member_id])

    async def _destroy(self, group: str) -> None:
        """A deleted group is gone from the streams as well."""
        for topic in self._topics.all():
            if topic.native:
                for partition in range(topic.partitions):
                    await self._native.destroy_group(topic.key(partition), group)
