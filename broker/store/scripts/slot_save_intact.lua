#!lua flags=allow-oom
-- Note the store id under which the transactional ids of a slot were last intact (`txns`).
--
-- KEYS: slot
-- ARGV: epoch, store id
-- Returns: 1, or -1 if the slot was taken by another worker
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return -1
end
redis.call('HSET', KEYS[1], 'txns', ARGV[2])
return 1
