"""A question to any worker: who made the ACLs, and when? Kafka's protocol has no field for it.

Asked over its unix socket by `moldau acls explain`. The question is empty, the answer one msgpack
document: creator and time (milliseconds since 1970) by the text of the ACL.
"""

from __future__ import annotations

import msgspec

# Not an API of Kafka: served on unix sockets only, to the operator.
ACL_ORIGINS = 32758


class AclOrigin(msgspec.Struct, frozen=True):
    created_by: str
    created_ms: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[str, AclOrigin])


def encode_origins(records: dict[bytes, bytes]) -> bytes:
    """`records`: as the store has them, by the text of the ACL."""
    return _encoder.encode(
        {text.decode("utf-8", "replace"): msgspec.Raw(record) for text, record in records.items()}
    )


def decode_origins(data: bytes) -> dict[str, AclOrigin]:
    """Raises ValueError."""
    return _decoder.decode(data)
