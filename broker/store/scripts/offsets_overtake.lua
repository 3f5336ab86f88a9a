-- Commit offsets of partitions for which transactions may have pending ones. A pending offset that is
-- overtaken loses its value and keeps its number and order: the partition stays unstable until the
-- transaction's marker arrives.
--
-- KEYS: slot, groups of the slot, offsets of the group
-- ARGV: epoch, group id, how many fields of pending offsets follow, these fields, then field and value
--       of each partition
-- Returns: 1, or -1 if the slot was taken
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return -1
end
local first = 4 + ARGV[3]
for i = 4, first - 1 do
    local found = redis.call('HGET', KEYS[3], ARGV[i])
    if found then
        redis.call('HSET', KEYS[3], ARGV[i], string.match(found, '^%d+:%d+:'))
    end
end
local new = 0
for i = first, #ARGV, 4000 do -- `unpack` takes no more than 8,000 words
    new = new + redis.call('HSET', KEYS[3], unpack(ARGV, i, math.min(i + 3999, #ARGV)))
end
if new > 0 then -- offsets that exist are those of a group in the index
    redis.call('SADD', KEYS[2], ARGV[2])
end
return 1
