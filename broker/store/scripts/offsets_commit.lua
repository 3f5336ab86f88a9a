-- Commit offsets of a group.
--
-- KEYS: slot, groups of the slot, offsets of the group
-- ARGV: epoch, group id, field and value of each partition
-- Returns: 1, or -1 if the slot was taken
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return -1
end
local first = 3
local new = 0
for i = first, #ARGV, 4000 do -- `unpack` takes no more than 8,000 words
    new = new + redis.call('HSET', KEYS[3], unpack(ARGV, i, math.min(i + 3999, #ARGV)))
end
if new > 0 then -- offsets that exist are those of a group in the index
    redis.call('SADD', KEYS[2], ARGV[2])
end
return 1
