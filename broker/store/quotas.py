"""Quotas in Redis: one hash, from the canonical text of an entity to its values."""

from __future__ import annotations

import logging

import msgspec

from moldau.broker.security.quota_entities import Entity, Values, read_canonical
from moldau.broker.store import keys
from moldau.broker.store.pipe import Pipe, pairs
from moldau.broker.store.scripts import script

logger = logging.getLogger("moldau.store")

_CHANGE = script("field_change")

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(Values).decode


class QuotaStore:
    def __init__(self, control: Pipe) -> None:
        self._control = control

    async def all(self) -> dict[Entity, Values]:
        found: dict[Entity, Values] = {}
        for field, value in pairs(await self._control.ask("HGETALL", keys.QUOTAS)).items():
            try:
                found[read_canonical(field.decode())] = _decode(value)
            except ValueError as fault:  # UnicodeDecodeError and msgspec's are such, too
                logger.warning("a quota in the store cannot be read, and is left out: %s", fault)
        return found

    async def of(self, entity: Entity) -> Values:
        value = await self._control.ask("HGET", keys.QUOTAS, entity.canonical())
        return {} if value is None else _decode(value)

    async def replace(self, entity: Entity, old: Values, new: Values) -> bool:
        """Compare-and-set: False if the stored values are not `old`. Without values it is
        removed."""
        words = [_encode(values) if values else b"" for values in (old, new)]
        name = entity.canonical()
        return bool(await self._control.ask("EVAL", _CHANGE, 1, keys.QUOTAS, name, *words))
