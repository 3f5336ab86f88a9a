"""A question to a worker: what may this user see? Asked by the console, for those who log in to it.

What the console shows of reports is limited to the answer. One msgpack document each way: the
identity of the user, and the names of what it may describe.
"""

from __future__ import annotations

import msgspec

# Not an API of Kafka: served on unix sockets only, to the operator.
VISIBLE = 32759


class VisibleNames(msgspec.Struct, frozen=True, omit_defaults=True):
    """`topics` of the cluster, `groups` of this worker; neither where it is `everything`."""

    is_over: bool = False  # the session: its user was removed, or has another password
    everything: bool = False
    cluster: bool = False  # the user may describe the cluster
    topics: list[str] = []
    groups: list[str] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(VisibleNames)


def encode_visible(found: VisibleNames) -> bytes:
    return _encoder.encode(found)


def decode_visible(data: bytes) -> VisibleNames:
    """Raises ValueError."""
    return _decoder.decode(data)
