"""Which member of which group a Fetch comes from. Pure.

A Fetch names no group. It is a member's when exactly one member of exactly one group has its
client id, its address and the partition. Otherwise nothing is marked as read in Redis; delivery
never depends on this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

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
