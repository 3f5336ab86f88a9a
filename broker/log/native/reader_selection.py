"""Which reader serves a Fetch of a native partition: a group member's, or the common one."""

from __future__ import annotations

from moldau.broker.log.log import FetchClient, FetchReader
from moldau.broker.log.native.group_assignments import GroupAssignments
from moldau.broker.log.native.member_reader import MemberReader
from moldau.broker.log.native.members import AssignedPartition
from moldau.broker.log.native.stream_reader import StreamReader
from moldau.broker.store.native import NativeStreams

MAX_STRANGERS = 1_000  # of a partition, remembered as members of no group


class ReaderSelection:
    """The members of groups that this worker serves with one partition."""

    def __init__(
        self,
        reader: StreamReader,
        native: NativeStreams,
        group_assignments: GroupAssignments,
        partition: AssignedPartition,
    ) -> None:
        self._reader = reader
        self._native = native
        self._readership = group_assignments
        self._partition = partition
        self._by_group: dict[str, MemberReader] = {}
        # Clients that are no group's member, according to the store: client id and host.
        self._strangers: set[tuple[str, str]] = set()

    def knows(self, client: FetchClient) -> bool:
        """Is it known which member this is, or that it is none?"""
        who = (client.client_id, client.client_host)
        return (
            who in self._strangers
            or self._readership.members.owner(self._partition, *who) is not None
        )

    async def find(self, client: FetchClient) -> None:
        """A new client may have become a member a moment ago: the store knows."""
        if not await self._readership.try_load():
            return
        if len(self._strangers) >= MAX_STRANGERS:
            self._strangers.clear()
        self._strangers.add((client.client_id, client.client_host))

    def reader_for(self, client: FetchClient) -> FetchReader:
        """The reader of the member that the client must be, if that is certain."""
        owner = self._readership.members.owner(
            self._partition, client.client_id, client.client_host
        )
        if owner is None:
            return self._reader
        found = self._by_group.get(owner.group)
        if found is None or found.owner != owner:
            found = self._by_group[owner.group] = MemberReader(self._reader, self._native, owner)
        return found

    def group_changed(self, group_id: str) -> None:
        """What is remembered of one member's reading does not hold for another."""
        self._by_group.pop(group_id, None)
        self._strangers.clear()
