"""The consumers' embedded protocol: opaque to Kafka's brokers, decoded here to display assignments
and to find the readers of a native topic."""

from __future__ import annotations

import struct


def assigned_partitions(assignment: bytes) -> list[tuple[str, int]] | None:
    """Topics and partitions of a ConsumerProtocolAssignment; None: it is something else.

    Every version begins as version 0 does: the version, then topics with their partitions. A
    member without an assignment (the group is rebalancing) has no bytes at all.
    """
    if not assignment:
        return []
    try:
        version, count = struct.unpack_from(">hi", assignment)
        if version < 0 or count < 0:
            return None
        at = 6
        places = []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", assignment, at)
            end = at + 2 + length
            if length < 0 or end > len(assignment):
                return None
            topic = assignment[at + 2 : end].decode()
            (number,) = struct.unpack_from(">i", assignment, end)
            if number < 0:
                return None
            partitions = struct.unpack_from(f">{number}i", assignment, end + 4)
            places += [(topic, partition) for partition in partitions]
            at = end + 4 + 4 * number
    except (struct.error, UnicodeDecodeError):
        return None
    return places
