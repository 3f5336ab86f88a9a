"""ACL_ORIGINS: who made the ACLs, and when. Kafka's protocol has no field for it."""

from __future__ import annotations

import msgspec

from moldau.broker.private.table import AclOrigin
from moldau.broker.store.acls import AclStore

_decode = msgspec.msgpack.Decoder(AclOrigin).decode


class AclOrigins:
    def __init__(self, store: AclStore) -> None:
        self._store = store

    async def answer(self, _: None) -> dict[str, AclOrigin]:
        records = await self._store.records()
        return {
            text.decode("utf-8", "replace"): _decode(record) for text, record in records.items()
        }
