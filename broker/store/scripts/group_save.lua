-- Write a group's record and those of its members that changed.
--
-- KEYS: slot, groups of the slot, group
-- ARGV: epoch, group id, identity, revision, record, generation, 1 if the members that follow are all
--       there are, how many members are gone, their fields, then field and value of each that changed
-- Returns: 1; 0 if the store has a newer record or the group was deleted; -1 if the slot was taken
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return -1
end
local gone = redis.call('HGET', KEYS[3], 'gone')
if gone and string.find(gone, ARGV[3], 1, true) then
    return 0
end
local stored = tonumber(redis.call('HGET', KEYS[3], 'revision') or '-1')
if tonumber(ARGV[4]) <= stored then
    return 0
end
redis.call('HSET', KEYS[3], 'identity', ARGV[3], 'revision', ARGV[4], 'record', ARGV[5])
if ARGV[7] == '1' then
    for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do
        if string.sub(field, 1, 2) == 'm:' then
            redis.call('HDEL', KEYS[3], field)
        end
    end
end
-- In portions, because Lua's stack takes a few thousand words.
local changed = 9 + tonumber(ARGV[8])
for i = 9, changed - 1, 1000 do
    redis.call('HDEL', KEYS[3], unpack(ARGV, i, math.min(i + 999, changed - 1)))
end
for i = changed, #ARGV, 1000 do
    redis.call('HSET', KEYS[3], unpack(ARGV, i, math.min(i + 999, #ARGV)))
end
local LIMIT = 16777216 -- as in broker/group/generations.py
local generation = tonumber(ARGV[6])
if generation > tonumber(redis.call('HGET', KEYS[1], 'top') or '0') and generation < LIMIT then
    redis.call('HSET', KEYS[1], 'top', string.format('%.0f', generation))
end
redis.call('SADD', KEYS[2], ARGV[2])
redis.call('PERSIST', KEYS[3])
return 1
