#!lua flags=allow-oom
-- Write the record of a transactional id.
--
-- KEYS: slot, transactional ids of the slot, transactional id
-- ARGV: epoch, transactional id, revision, record
-- Returns: 1; 0 if the store has a newer record; -1 if the slot was taken
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return -1
end
local stored = tonumber(redis.call('HGET', KEYS[3], 'revision') or '-1')
if tonumber(ARGV[3]) <= stored then
    return 0
end
redis.call('HSET', KEYS[3], 'revision', ARGV[3], 'record', ARGV[4])
if stored < 0 then
    redis.call('SADD', KEYS[2], ARGV[2])
end
return 1
