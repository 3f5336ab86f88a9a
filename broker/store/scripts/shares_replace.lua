-- Put other states in the place of those of some share-partitions, under new terms: a leader that has an
-- old state can write it no more.
--
-- KEYS: slot, group, terms of its share-partitions
-- ARGV: epoch, identity of the group, share-partition and state of each
-- Returns: 1; 0 if there is no share group of this identity; -1 if the slot was taken
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return -1
end
local group = redis.call('HMGET', KEYS[2], 'type', 'identity')
if group[1] ~= 'share' or group[2] ~= ARGV[2] then
    return 0
end
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('HSET', KEYS[3], 'identity', ARGV[2])
for i = 3, #ARGV, 2 do
    local place = ARGV[i]
    local stored = redis.call('HGET', KEYS[3], place)
    if stored then
        redis.call('UNLINK', KEYS[2] .. ':share:' .. place .. ':' .. stored)
    end
    local term = string.format('%.0f', math.max(tonumber(stored or '0') + 1, ms))
    redis.call('SET', KEYS[2] .. ':share:' .. place .. ':' .. term, ARGV[i + 1])
    redis.call('HSET', KEYS[3], place, term)
end
return 1
