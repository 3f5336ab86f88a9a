#!lua flags=allow-oom
-- Take a slot, unless another owner has taken it since `held`.
--
-- What was taken under another history of the store may have been lost: generations then go on at a
-- number above all that any member has seen, the seconds since 2020, which an int32 holds until 2088.
--
-- KEYS: slot
-- ARGV: owner, the epoch under which this worker held the slot (0: it did not), history of the store
-- Returns: the new epoch (0: refused), the epoch before, the floor of generations
local found = redis.call('HMGET', KEYS[1], 'epoch', 'history', 'floor')
local before, held = tonumber(found[1] or '0'), tonumber(ARGV[2])
local floor = tonumber(found[3] or '0')
if held > 0 and before > held then
    return {0, before, floor}
end
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local epoch = math.max(before + 1, held + 1, ms)
if (found[2] or '') ~= '' and ARGV[3] ~= '' and found[2] ~= ARGV[3] then
    floor = math.max(floor, now[1] - 1577836800)
end
redis.call('HSET', KEYS[1],
    'epoch', string.format('%.0f', epoch), 'owner', ARGV[1],
    'history', ARGV[3], 'floor', string.format('%.0f', floor))
return {epoch, before, floor}
