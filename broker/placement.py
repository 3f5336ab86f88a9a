"""Which worker leads a partition: pure, and the same in workers, routers and tests.

Leading is a preference only, since any worker can serve any partition: appends of one partition
that meet in one worker are gathered there instead of being refused by the store.
"""

from __future__ import annotations

import zlib


def leader_of(topic: str | bytes, partition: int, workers: int) -> int:
    """The worker that leads a partition: spread evenly over them.

    A topic is its name, as text or as it stands on the wire.
    """
    name = topic.encode() if isinstance(topic, str) else topic
    return (zlib.crc32(name) + partition) % workers
