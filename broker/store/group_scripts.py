"""The scripts that take slots, and write and remove groups. All but the first compare the epoch of
the slot; `groups.py` says why."""

from __future__ import annotations

from broker.generations import LIMIT, ORIGIN_S
from broker.store.fence import EVEN_IF_FULL, FENCE

_STEP = 10_000  # more generations than a group begins in a tail that is lost
_MINUTES = f"math.floor((now[1] - {ORIGIN_S}) / 60) % {LIMIT} "

# Unless another owner has taken the slot since `held`. What was taken under another history of the
# store may have been lost: generations then go on at a floor above all that any member has seen.
# That is the larger of
# - the minutes since 2020: more than a group has had if it began one a minute or less;
# - a step above `top`, the highest generation stored of any group, and above the floor before,
# and one more for each second since the slot was taken before: if the store loses its tail again,
# and with it what this script wrote, the next floor is a higher one all the same.
# Earlier versions took the seconds since 2020, which are above the limit.
TAKE = (
    EVEN_IF_FULL + "local found = redis.call('HMGET', KEYS[1], 'epoch', 'history', 'floor', 'top') "
    "local before, held = tonumber(found[1] or '0'), tonumber(ARGV[2]) "
    "local floor, top = tonumber(found[3] or '0'), tonumber(found[4] or '0') "
    "if held > 0 and before > held then return {0, before, floor, top} end "
    "local now = redis.call('TIME') "
    "local ms = now[1] * 1000 + math.floor(now[2] / 1000) "
    "local epoch = math.max(before + 1, held + 1, ms) "
    "if (found[2] or '') ~= '' and ARGV[3] ~= '' and found[2] ~= ARGV[3] then "
    f"if floor >= {LIMIT} then floor = 0 end "
    f"local since = math.min(math.max(math.floor((ms - before) / 1000), 0), {_STEP}) "
    f"floor = math.max({_MINUTES}, math.max(floor, top) + {_STEP}) + since end "
    f"if floor >= {LIMIT} then floor = {_MINUTES} end "
    "redis.call('HSET', KEYS[1], 'epoch', string.format('%.0f', epoch), 'owner', ARGV[1], "
    "'history', ARGV[3], 'floor', string.format('%.0f', floor)) "
    "return {epoch, before, floor, top}"
)
_RAISE_TOP = (
    "local generation = tonumber({}) "
    "if generation > tonumber(redis.call('HGET', KEYS[1], 'top') or '0') "
    f"and generation < {LIMIT} then "
    "redis.call('HSET', KEYS[1], 'top', string.format('%.0f', generation)) end "
)
RAISE_TOP = FENCE + _RAISE_TOP.replace("{}", "ARGV[2]") + "return 1"

SAVE = (
    FENCE + "local gone = redis.call('HGET', KEYS[3], 'gone') "
    "if gone and string.find(gone, ARGV[3], 1, true) then return 0 end "
    "local at = tonumber(redis.call('HGET', KEYS[3], 'revision') or '-1') "
    "if tonumber(ARGV[4]) <= at then return 0 end "
    "redis.call('HSET', KEYS[3], 'identity', ARGV[3], 'revision', ARGV[4], 'record', ARGV[5]) "
    # Members: all others go if the write is of the whole group; then those that are gone, by
    # their number; then fields and values. By portions: Lua's stack takes some thousand words.
    "if ARGV[7] == '1' then for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do "
    "if string.sub(field, 1, 2) == 'm:' then redis.call('HDEL', KEYS[3], field) end end end "
    "local at = 9 + tonumber(ARGV[8]) "
    "for i = 9, at - 1, 1000 do "
    "redis.call('HDEL', KEYS[3], unpack(ARGV, i, math.min(i + 999, at - 1))) end "
    "for i = at, #ARGV, 1000 do "
    "redis.call('HSET', KEYS[3], unpack(ARGV, i, math.min(i + 999, #ARGV))) end "
    + _RAISE_TOP.replace("{}", "ARGV[6]")
    + "redis.call('SADD', KEYS[2], ARGV[2]) redis.call('PERSIST', KEYS[3]) return 1"
)
REMOVE = (
    EVEN_IF_FULL + FENCE + "local known = redis.call('HGET', KEYS[3], 'identity') "
    "local gone = redis.call('HGET', KEYS[3], 'gone') or '' "
    "if not string.find(gone, ARGV[3], 1, true) then "
    "gone = string.sub(gone .. ARGV[3] .. ' ', -tonumber(ARGV[4])) end "
    "redis.call('HSET', KEYS[3], 'gone', gone) "
    "if known and known ~= ARGV[3] then return 0 end "
    "redis.call('HDEL', KEYS[3], 'identity', 'revision', 'record') "
    "for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do "
    "if string.sub(field, 1, 2) == 'm:' then redis.call('HDEL', KEYS[3], field) end end "
    "redis.call('EXPIRE', KEYS[3], ARGV[5]) redis.call('UNLINK', KEYS[4]) "
    "redis.call('SREM', KEYS[2], ARGV[2]) return 1"
)
