"""The topics a consumer subscribes to, read from the metadata of the protocol type `consumer`.

Every version of ConsumerProtocolSubscription begins with that of version 0: the version and the
topics. Only those are read, so later versions need no change here.
"""

from __future__ import annotations

import struct

CONSUMER = "consumer"
"""The protocol type of consumers. The metadata of others, Connect's for example, is theirs."""


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """None: this is not a subscription."""
    try:
        version, count = struct.unpack_from(">hi", metadata)
        if version < 0 or count < 0:
            return None
        at = 6
        topics = []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, at)
            end = at + 2 + length
            if length < 0 or end > len(metadata):
                return None
            topics.append(metadata[at + 2 : end].decode())
            at = end
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
