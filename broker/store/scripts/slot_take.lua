#!lua flags=allow-oom
-- Take a slot, unless another owner has taken it since `held`.
--
-- If the store has changed since the slot was taken, it may have lost generations. They then continue
-- at the lowest generation (`floor`) that is above all that any member has seen: the larger of
-- - the minutes since 2020: more than a group has had if it began one a minute or less;
-- - a step above `top`, the highest generation stored of any group, and above the lowest one before,
-- and one more for each second since the slot was taken before: if the store loses its tail again, and
-- with it what this script wrote, the next lowest generation is higher all the same.
-- Earlier versions took the seconds since 2020, which are above the limit.
--
-- KEYS: slot
-- ARGV: owner, the epoch under which this worker held the slot (0: it did not), store id
-- Returns: the new epoch (0: refused), the epoch before, the lowest generation, `top`
local LIMIT, ORIGIN_S = 16777216, 1577836800 -- as in broker/group/generations.py
local STEP = 10000 -- more generations than a group begins in a tail that is lost
local found = redis.call('HMGET', KEYS[1], 'epoch', 'history', 'floor', 'top')
local before, held = tonumber(found[1] or '0'), tonumber(ARGV[2])
local lowest, top = tonumber(found[3] or '0'), tonumber(found[4] or '0')
if held > 0 and before > held then
    return {0, before, lowest, top}
end
local now = redis.call('TIME')
local minutes = math.floor((now[1] - ORIGIN_S) / 60) % LIMIT
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local epoch = math.max(before + 1, held + 1, ms)
if (found[2] or '') ~= '' and ARGV[3] ~= '' and found[2] ~= ARGV[3] then
    if lowest >= LIMIT then
        lowest = 0
    end
    local since = math.min(math.max(math.floor((ms - before) / 1000), 0), STEP)
    lowest = math.max(minutes, math.max(lowest, top) + STEP) + since
end
if lowest >= LIMIT then
    lowest = minutes
end
redis.call('HSET', KEYS[1],
    'epoch', string.format('%.0f', epoch), 'owner', ARGV[1],
    'history', ARGV[3], 'floor', string.format('%.0f', lowest))
return {epoch, before, lowest, top}
