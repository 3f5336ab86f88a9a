-- Note the highest generation of a slot's groups.
--
-- KEYS: slot
-- ARGV: epoch, generation
-- Returns: 1, or -1 if the slot was taken by another worker
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return -1
end
local LIMIT = 16777216 -- as in broker/group/generations.py
local generation = tonumber(ARGV[2])
if generation > tonumber(redis.call('HGET', KEYS[1], 'top') or '0') and generation < LIMIT then
    redis.call('HSET', KEYS[1], 'top', string.format('%.0f', generation))
end
return 1
