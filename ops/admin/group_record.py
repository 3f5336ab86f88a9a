"""A group's record in the store: identity and generation, which Kafka's protocol has no field for.

Only where the store can be asked (local_store.py); elsewhere nothing is known.
"""

from __future__ import annotations

import msgspec
import redis

from broker.group.record import GroupRecord, UnknownRecordFormat, decode
from broker.store import keys


class Records:
    """The records of one broker's groups; without a store, None for each."""

    def __init__(self, store: redis.Redis | None) -> None:
        self._store = store

    def get(self, group_id: str) -> GroupRecord | None:
        if self._store is None:
            return None
        try:
            stored = self._store.hget(keys.group(group_id).decode(), "record")
            return decode(stored) if isinstance(stored, bytes) else None
        except (redis.RedisError, UnknownRecordFormat, msgspec.DecodeError):
            return None  # what cannot be read is not known; all else is told by the broker
