-- Choose the incarnation of a new topic: 0 if its name was never used, else at least the store's clock,
-- because a server may have lost the last one it gave.
--
-- KEYS: incarnations
-- ARGV: name, the field with the store id under which the store was set up, the current store id
-- Returns: the incarnation
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local known = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2])
if not known[1] and known[2] == ARGV[3] and ARGV[3] ~= '' then
    return '0'
end
return string.format('%.0f', math.max(now, tonumber(known[1] or 0)))
