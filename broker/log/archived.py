"""What the lake holds of each partition, as the archiver tells it through the Kafka protocol.

The archiver commits offsets for a group of this name, like any consumer: durable before they are
acknowledged, gone with their topic, visible with `moldau groups describe`. Retention reads them
from the store, as the group belongs to one worker and partitions are led by all.

The metadata of such a commit begins with the id of the topic. A topic that was deleted and created
again may meet its predecessor's offset here, for a while or (when the group's worker was away) for
good; going by the name alone would trim records that no lake has.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from broker.group.offsets import CommittedOffset
from broker.store.groups import GroupStore

ARCHIVE_GROUP = "__moldau_archive"

_decode = msgspec.msgpack.Decoder(CommittedOffset).decode


def archive_note(topic_id: bytes, lake: str) -> str:
    """The metadata of the archiver's commits."""
    return f"{topic_id.hex()} {lake}"


class Archived:
    def __init__(self, groups: GroupStore, topic_id: Callable[[str], bytes | None]) -> None:
        self._groups = groups
        self._topic_id = topic_id  # of the topic that has this name now

    async def until(self, topic: str, partition: int) -> int:
        """Every record below this offset is in a lake. 0: none is known to be."""
        stored = await self._groups.offset(ARCHIVE_GROUP, f"{topic}:{partition}".encode())
        topic_id = self._topic_id(topic)
        if stored is None or topic_id is None:
            return 0
        committed = _decode(stored)
        if committed.metadata.partition(" ")[0] != topic_id.hex():
            return 0
        return max(committed.offset, 0)
