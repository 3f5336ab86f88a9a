"""What makes an offset name one record for ever: reservations, proofs and new epochs of logs.

Fields of a log's state: `history`, the store_id under which it was last proved whole; `epochs`;
`floor`, the largest end any living worker knew when the store began another history, and
`floor_epoch`; for each worker `r:<n>`, below which it may append, and `c:<n>`, how much of that is
confirmed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from moldau.broker.store import keys
from moldau.broker.store.pipe import Pipe
from moldau.broker.store.resp import pairs
from moldau.broker.store.scripts import script
from moldau.broker.store.topics import CALL_EVEN_IF_FULL

_RAISE_FLOOR = script("log_raise_floor")
_RESERVE = script("log_reserve")
_RELEASE = script("log_release")
_PROVE = script("log_prove")
_RAISE_EPOCH = script("epoch_raise")

FLOORS_KEPT_S = 86_400


class Floor(NamedTuple):
    """What a worker has known of a log."""

    end: int = 0
    epoch: int = 0


class Outcome(IntEnum):
    """Of a proof. ALREADY: by another worker, under this store_id. CHANGED: the log is not as read."""

    ALREADY = 0
    WHOLE = 1
    NEW_EPOCH = 2
    GONE = 3
    CHANGED = 4


class Proof(NamedTuple):
    outcome: Outcome
    start: int = -1  # of the new epoch
    floor: int = -1  # the largest end that is known to have been there
    epoch: int = -1


class LogIntegrityStore:
    """The commands. The control pipe: all of them are small."""

    def __init__(self, control: Pipe, worker: int) -> None:
        self._control = control
        self._worker = worker

    async def raise_floor(self, key: bytes, store_id: bytes, floor: Floor) -> None:
        """This worker has known the log up to there."""
        await self._control.ask("EVAL", _RAISE_FLOOR, 1, keys.state(key), store_id, *floor)

    async def prove(
        self, key: bytes, store_id: bytes, last_id: bytes, end: int, floor: Floor,
        *, proved: bool, reserve: int,
    ) -> Proof:  # fmt: skip
        """Begin the store_id's history for this log: whole as it is, or with a new epoch."""
        reply: list[Any] = await self._control.ask(
            *("EVAL", _PROVE, 2, key, keys.state(key), store_id, last_id, end, *floor),
            *(int(proved), self._worker, reserve),
        )
        return Proof(Outcome(reply[0]), *map(int, reply[1:]))

    async def proved(self, key: bytes) -> tuple[bytes | None, bytes | None]:
        """The store_id under which a log was last proved whole, and its epochs.

        Without a store_id it has never been in a history that lost anything, or does not exist.
        """
        store_id, epochs = await self._control.ask("HMGET", keys.state(key), "history", "epochs")
        return store_id, epochs

    async def reserve(self, key: bytes, store_id: bytes, ceiling: int) -> bool:
        """Reserve offsets below `ceiling`; False under another history. Confirm before use."""
        return await self._set(key, store_id, b"r:%d" % self._worker, ceiling)

    async def reservation_confirmed(self, key: bytes, store_id: bytes, ceiling: int) -> bool:
        """Another process of this worker may use it right away."""
        return await self._set(key, store_id, b"c:%d" % self._worker, ceiling)

    async def _set(self, key: bytes, store_id: bytes, field: bytes, ceiling: int) -> bool:
        words = ("EVAL", _RESERVE, 1, keys.state(key), store_id, field, ceiling)
        return bool(await self._control.ask(*words))

    async def release(self, key: bytes, store_id: bytes) -> None:
        """Give the reservation up: nothing more will be appended under it."""
        words = ("EVAL", _RELEASE, 1, keys.state(key), store_id, self._worker)
        await self._control.ask(*words)

    # --- which workers have raised the floors of the logs they know ---

    async def floors_are_raised(self, store_id: bytes) -> int:
        """Note that this worker has; returns how many have."""
        name = keys.floors(store_id)
        await self._control.ask("EVAL", CALL_EVEN_IF_FULL, 1, name, "SADD", self._worker)
        await self._control.ask("EXPIRE", name, FLOORS_KEPT_S)
        return await self.floors_raised(store_id)

    async def floors_raised(self, store_id: bytes) -> int:
        count: int = await self._control.ask("SCARD", keys.floors(store_id))
        return count


class EpochStore:
    """The leader epochs above 0 of all logs, in one hash: a worker answers requests about logs that
    it has not loaded from here. The epochs in a log's own state decide (store_loss/epochs.py)."""

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
        return bool(await self._control.ask("EVAL", _RAISE_EPOCH, 1, keys.EPOCHS, log, epoch))
