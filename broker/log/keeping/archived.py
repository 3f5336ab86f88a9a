"""How much of each partition is archived in the lake.

The archiver commits offsets for the group `__moldau_archive`, like any consumer: durable before
they are acknowledged, deleted with their topic, visible with `moldau groups describe`. Retention
reads them from the store, as one worker coordinates the group and all workers lead partitions.

The metadata of such a commit begins with the id of the topic. A topic that was deleted and created
again may find its predecessor's offset here, for a while or (when the coordinating worker was down)
for good; going by the name alone would trim records that are in no lake.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from moldau.broker.group.offsets import CommittedOffset
from moldau.broker.placement import slot_of
from moldau.broker.store.groups import GroupStore

ARCHIVE_GROUP = "__moldau_archive"

_decode = msgspec.msgpack.Decoder(CommittedOffset).decode


def archive_note(topic_id: bytes, lake: str) -> str:
    """The metadata of the archiver's commits."""
    return f"{topic_id.hex()} {lake}"


class Archived:
    def __init__(self, groups: GroupStore, topic_id: Callable[[str], bytes | None]) -> None:
        self._groups = groups
        self._topic_id = topic_id  # of the topic that has a name now

    async def until(self, topic: str, partition: int) -> int:
        """Every record below this offset is in a lake. 0: none is known to be."""
        field = f"{topic}:{partition}".encode()
        stored = await self._groups.offset(slot_of(ARCHIVE_GROUP), ARCHIVE_GROUP, field)
        topic_id = self._topic_id(topic)
        if stored is None or topic_id is None:
            return 0
        committed = _decode(stored)
        if committed.metadata.partition(" ")[0] != topic_id.hex():
            return 0
        return max(committed.offset, 0)
