#!lua flags=allow-oom
-- Remove the record of a transactional id.
--
-- KEYS: slot, transactional ids of the slot, transactional id
-- ARGV: epoch, transactional id, revision
-- Returns: 1; 0 if the store has a newer record; -1 if the slot was taken
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return -1
end
local stored = tonumber(redis.call('HGET', KEYS[3], 'revision') or '-1')
if tonumber(ARGV[3]) < stored then
    return 0
end
redis.call('UNLINK', KEYS[3])
redis.call('SREM', KEYS[2], ARGV[2])
return 1
