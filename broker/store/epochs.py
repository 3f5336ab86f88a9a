"""The current leader epochs of logs that are above 0, in one hash: for requests about logs that a
worker has not loaded. What counts for a log is in its state (log/epochs.py)."""

from __future__ import annotations

from moldau.broker.store import keys
from moldau.broker.store.pipe import Pipe
from moldau.broker.store.resp import pairs
from moldau.broker.store.scripts import script

_RAISE = script("epoch_raise")


class EpochStore:
    def __init__(self, control: Pipe) -> None:
        self._control = control

    async def all(self) -> dict[bytes, int]:
        """By the key of the log."""
        found = pairs(await self._control.ask("HGETALL", keys.EPOCHS))
        return {log: int(epoch) for log, epoch in found.items()}

    async def of(self, log: bytes) -> int:
        return int(await self._control.ask("HGET", keys.EPOCHS, log) or 0)

    async def raise_to(self, log: bytes, epoch: int) -> bool:
        """False when it is as high already."""
        return bool(await self._control.ask("EVAL", _RAISE, 1, keys.EPOCHS, log, epoch))
