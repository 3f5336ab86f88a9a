"""A private request to a worker: which names may this user see? The console asks it for its users.

The console shows only these parts of reports. The request and the reply are one msgpack document
each: the identity of the user, and the names of what it may describe.
"""

from __future__ import annotations

import msgspec

# This is not an API of Kafka: it is served to the operator, on unix sockets only.
VISIBLE = 32759


class VisibleNames(msgspec.Struct, frozen=True, omit_defaults=True):
    """`topics` of the cluster and `groups` of this worker; both are empty with `everything`."""

    is_over: bool = False  # the session is over: its user was removed or has another password
    everything: bool = False
    cluster: bool = False  # the user may describe the cluster
    topics: list[str] = []
    groups: list[str] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(VisibleNames)


def encode_visible(found: VisibleNames) -> bytes:
    return _encoder.encode(found)


def decode_visible(data: bytes) -> VisibleNames:
    """Decode the reply. Raises ValueError."""
    return _decoder.decode(data)
