"""Commands about the integrity of logs: reservations, known ends, checks, leader epochs.

Fields of a log's state in Redis, and the word for each in the code:

    history             the store id under which the log was last known to be intact
    epochs              leader epochs and gaps (store_loss/epochs.py)
    floor, floor_epoch  the known end: the largest end and epoch that a living worker reported
    r:<worker>          the worker's reservation: it may append below this offset
    c:<worker>          how much of the reservation is confirmed
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from moldau.broker.store import keys
from moldau.broker.store.pipe import Pipe, pairs
from moldau.broker.store.scripts import script
from moldau.broker.store.topics import CALL_EVEN_IF_FULL

_RAISE_KNOWN_END = script("log_raise_known_end")
_RESERVE = script("log_reserve")
_RELEASE = script("log_release")
_CHECK_INTACT = script("log_check_intact")
_RAISE_EPOCH = script("epoch_raise")

KNOWN_ENDS_KEPT_S = 86_400


class KnownEnd(NamedTuple):
    """How far a worker knows a log."""

    end: int = 0
    epoch: int = 0


class Outcome(IntEnum):
    """What the check of a log found; the script returns these numbers."""

    ALREADY = 0  # another worker has checked it under this store id
    INTACT = 1
    NEW_EPOCH = 2
    GONE = 3  # the log was deleted
    CHANGED = 4  # the log is not as the caller has read it: read it again


class IntactCheck(NamedTuple):
    outcome: Outcome
    start: int = -1  # of the new epoch
    known_end: int = -1  # the largest end that the log is known to have had
    epoch: int = -1


class LogIntegrityStore:
    """Every command is small, and goes over the control pipe."""

    def __init__(self, control: Pipe, worker: int) -> None:
        self._control = control
        self._worker = worker

    async def raise_known_end(self, key: bytes, store_id: bytes, known_end: KnownEnd) -> None:
        """Note that this worker knows the log up to there."""
        await self._control.ask("EVAL", _RAISE_KNOWN_END, 1, keys.state(key), store_id, *known_end)

    async def check_intact(
        self, key: bytes, store_id: bytes, last_id: bytes, end: int, known_end: KnownEnd,
        *, is_intact: bool, reserve: int,
    ) -> IntactCheck:  # fmt: skip
        """Mark the log as intact under this store id, as it is or with a new epoch.

        `is_intact`: it is known that the store has lost nothing. `reserve`: so many offsets of a
        new epoch for this worker.
        """
        reply: list[Any] = await self._control.ask(
            *("EVAL", _CHECK_INTACT, 2, key, keys.state(key), store_id, last_id, end, *known_end),
            *(int(is_intact), self._worker, reserve),
        )
        return IntactCheck(Outcome(reply[0]), *map(int, reply[1:]))

    async def intact_under(self, key: bytes) -> tuple[bytes | None, bytes | None]:
        """The store id under which a log was last known to be intact, and its epochs.

        A log without a store id does not exist, or its store has never changed.
        """
        store_id, epochs = await self._control.ask("HMGET", keys.state(key), "history", "epochs")
        return store_id, epochs

    async def reserve(self, key: bytes, store_id: bytes, ceiling: int) -> bool:
        """Reserve offsets below `ceiling`, to be confirmed before use. False: the store changed."""
        return await self._set(key, store_id, b"r:%d" % self._worker, ceiling)

    async def reservation_confirmed(self, key: bytes, store_id: bytes, ceiling: int) -> bool:
        """Note that it is confirmed: another process of this worker may use it right away."""
        return await self._set(key, store_id, b"c:%d" % self._worker, ceiling)

    async def _set(self, key: bytes, store_id: bytes, field: bytes, ceiling: int) -> bool:
        words = ("EVAL", _RESERVE, 1, keys.state(key), store_id, field, ceiling)
        return bool(await self._control.ask(*words))

    async def release(self, key: bytes, store_id: bytes) -> None:
        """Give the reservation up: nothing more is appended under it."""
        words = ("EVAL", _RELEASE, 1, keys.state(key), store_id, self._worker)
        await self._control.ask(*words)

    # --- which workers have reported the known ends of their logs ---

    async def known_ends_reported(self, store_id: bytes) -> int:
        """Note that this worker has reported; returns how many workers have."""
        name = keys.known_ends(store_id)
        await self._control.ask("EVAL", CALL_EVEN_IF_FULL, 1, name, "SADD", self._worker)
        await self._control.ask("EXPIRE", name, KNOWN_ENDS_KEPT_S)
        return await self.workers_reported(store_id)

    async def workers_reported(self, store_id: bytes) -> int:
        count: int = await self._control.ask("SCARD", keys.known_ends(store_id))
        return count


class EpochStore:
    """The leader epochs above 0 of all logs, in one hash: a worker answers requests about logs that
    it has not loaded from here. The epochs in a log's own state decide (store_loss/epochs.py)."""

    def __init__(self, control: Pipe) -> None:
        self._control = control

    async def all(self) -> dict[bytes, int]:
        """Every epoch, by the key of its log."""
        found = pairs(await self._control.ask("HGETALL", keys.EPOCHS))
        return {log: int(epoch) for log, epoch in found.items()}

    async def of(self, log: bytes) -> int:
        return int(await self._control.ask("HGET", keys.EPOCHS, log) or 0)

    async def raise_to(self, log: bytes, epoch: int) -> bool:
        """Raise an epoch. False: it is as high already."""
        return bool(await self._control.ask("EVAL", _RAISE_EPOCH, 1, keys.EPOCHS, log, epoch))
