#!lua flags=allow-oom
-- Note the history in which the transactional ids of a slot were last complete.
--
-- KEYS: slot
-- ARGV: epoch, history of the store
-- Returns: 1, or -1 if the slot was taken by another worker
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return -1
end
redis.call('HSET', KEYS[1], 'txns', ARGV[2])
return 1
