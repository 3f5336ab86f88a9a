"""What makes an offset name one record for ever: reservations, proofs and new epochs of logs.

Fields of a log's state: `history`, the token under which it was last proved whole; `epochs`;
`floor`, the largest end any living worker knew when the store began another history, and
`floor_epoch`; for each worker `r:<n>`, below which it may append, and `c:<n>`, how much of that is
confirmed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from broker.store import keys
from broker.store.pipe import Pipe

# None of them may bring the state of a deleted log back, and all must run in a full store.
_BEGIN = "#!lua flags=allow-oom\n"
_RAISE_FLOOR = (
    _BEGIN
    + "local state = redis.call('HMGET', KEYS[1], 'start', 'history', 'floor', 'floor_epoch') "
    "if not state[1] or state[2] == ARGV[1] then return 0 end "
    "if tonumber(state[3] or '0') < tonumber(ARGV[2]) then "
    "redis.call('HSET', KEYS[1], 'floor', ARGV[2]) end "
    "if tonumber(state[4] or '0') < tonumber(ARGV[3]) then "
    "redis.call('HSET', KEYS[1], 'floor_epoch', ARGV[3]) end return 0"
)
_RESERVE = (
    _BEGIN + "if redis.call('HGET', KEYS[1], 'history') ~= ARGV[1] then return 0 end "
    "if tonumber(redis.call('HGET', KEYS[1], ARGV[2]) or '0') < tonumber(ARGV[3]) then "
    "redis.call('HSET', KEYS[1], ARGV[2], ARGV[3]) end return 1"
)
_RELEASE = (
    _BEGIN + "if redis.call('HGET', KEYS[1], 'history') ~= ARGV[1] then return 0 end "
    "return redis.call('HDEL', KEYS[1], 'r:' .. ARGV[2], 'c:' .. ARGV[2])"
)
# A log whose last id is beyond its end is not whole, whatever was proved before: another program
# removed its last entries. A caller that does not know of an epoch has to read the log again.
#
# ARGV: token, the last id as it was read, the end of the log, the caller's floor and epoch, is it
# proved whole by other means, its worker number, how much to reserve for it in a new epoch.
_PROVE = (
    _BEGIN + "local state = redis.call('HGETALL', KEYS[2]) "
    "local end_, ceiling, floor = tonumber(ARGV[3]), 0, tonumber(ARGV[4]) "
    "local number = tonumber(ARGV[5]) "
    "local offset, sequence = string.match(ARGV[2], '(%d+)-(%d+)') "
    "local reached = tonumber(offset) + math.min(tonumber(sequence), 1) "
    "floor = math.max(floor, reached) "
    "local reserved, history, epochs, start, snapshot_at = {}, nil, '', nil, -1 "
    "for i = 1, #state, 2 do local name, value = state[i], state[i + 1] "
    "if name == 'history' then history = value "
    "elseif name == 'epochs' then epochs = value "
    "elseif name == 'start' then start = value "
    "elseif name == 'snapshot_at' then snapshot_at = tonumber(value) "
    "elseif name == 'floor' then floor = math.max(floor, tonumber(value)) "
    "elseif name == 'floor_epoch' then number = math.max(number, tonumber(value)) "
    "elseif string.sub(name, 1, 2) == 'r:' then reserved[#reserved + 1] = name "
    "ceiling = math.max(ceiling, tonumber(value)) "
    "elseif string.sub(name, 1, 2) == 'c:' then reserved[#reserved + 1] = name end end "
    "if not start then return {3} end "
    "local last, began = string.match(epochs, '(%d+):(%d+):%d+$') "
    "if tonumber(began or '0') > end_ then return {4} end "
    "if history == ARGV[1] and reached <= end_ then return {0} end "
    "local info = redis.call('XINFO', 'STREAM', KEYS[1]) "
    "for i = 1, #info, 2 do if info[i] == 'last-generated-id' and info[i + 1] ~= ARGV[2] then "
    "return {4} end end "
    "if #reserved > 0 then redis.call('HDEL', KEYS[2], unpack(reserved)) end "
    "redis.call('HDEL', KEYS[2], 'floor', 'floor_epoch') "
    "redis.call('HSET', KEYS[2], 'history', ARGV[1]) "
    "local whole = not history or ARGV[6] == '1' or math.max(ceiling, floor) <= end_ "
    "if whole and reached <= end_ then return {1} end "
    "local begin = math.max(ceiling, floor, end_ + 1) "
    "number = math.max(number, tonumber(last or '0')) + 1 "
    "if epochs ~= '' then epochs = epochs .. ' ' end "
    "local text = string.format('%d:%.0f:%.0f', number, begin, end_) "
    "local ceil = string.format('%.0f', begin + tonumber(ARGV[8])) "
    "redis.call('XSETID', KEYS[1], string.format('%.0f-0', begin)) "
    "redis.call('HSET', KEYS[2], 'epochs', epochs .. text, 'r:' .. ARGV[7], ceil) "
    "if snapshot_at > end_ then redis.call('HDEL', KEYS[2], 'snapshot', 'snapshot_at') end "
    "return {2, string.format('%.0f', begin), string.format('%.0f', floor), number}"
)


class Floor(NamedTuple):
    """What a worker has known of a log."""

    end: int = 0
    epoch: int = 0


class Outcome(IntEnum):
    """Of a proof. ALREADY: by another worker, under this token. CHANGED: the log is not as read."""

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


class LogHistoryStore:
    """The commands. The control pipe: all of them are small."""

    def __init__(self, control: Pipe, worker: int) -> None:
        self._control = control
        self._worker = worker

    async def raise_floor(self, key: bytes, token: bytes, floor: Floor) -> None:
        """This worker has known the log up to there."""
        await self._control.ask("EVAL", _RAISE_FLOOR, 1, keys.state(key), token, *floor)

    async def prove(
        self, key: bytes, token: bytes, last_id: bytes, end: int, floor: Floor,
        *, proved: bool, reserve: int,
    ) -> Proof:  # fmt: skip
        """Begin the token's history for this log: whole as it is, or with a new epoch."""
        reply: list[Any] = await self._control.ask(
            *("EVAL", _PROVE, 2, key, keys.state(key), token, last_id, end, *floor),
            *(int(proved), self._worker, reserve),
        )
        return Proof(Outcome(reply[0]), *map(int, reply[1:]))

    async def proved(self, key: bytes) -> tuple[bytes | None, bytes | None]:
        """The token under which a log was last proved whole, and its epochs.

        Without a token it has never been in a history that lost anything, or does not exist.
        """
        token, epochs = await self._control.ask("HMGET", keys.state(key), "history", "epochs")
        return token, epochs

    async def reserve(self, key: bytes, token: bytes, ceiling: int) -> bool:
        """Reserve offsets below `ceiling`; False under another history. Confirm before use."""
        return await self._set(key, token, b"r:%d" % self._worker, ceiling)

    async def reservation_confirmed(self, key: bytes, token: bytes, ceiling: int) -> bool:
        """Another process of this worker may use it right away."""
        return await self._set(key, token, b"c:%d" % self._worker, ceiling)

    async def _set(self, key: bytes, token: bytes, field: bytes, ceiling: int) -> bool:
        words = ("EVAL", _RESERVE, 1, keys.state(key), token, field, ceiling)
        return bool(await self._control.ask(*words))

    async def release(self, key: bytes, token: bytes) -> None:
        """Give the reservation up: nothing more will be appended under it."""
        words = ("EVAL", _RELEASE, 1, keys.state(key), token, self._worker)
        await self._control.ask(*words)

    # --- which workers have raised the floors of the logs they know ---

    async def floors_are_raised(self, token: bytes) -> int:
        """Note that this worker has; returns how many have."""
        name = keys.floors(token)
        await self._control.ask("SADD", name, self._worker)
        await self._control.ask("EXPIRE", name, FLOORS_KEPT_S)
        return await self.floors_raised(token)

    async def floors_raised(self, token: bytes) -> int:
        count: int = await self._control.ask("SCARD", keys.floors(token))
        return count


FLOORS_KEPT_S = 86_400
