#!lua flags=allow-oom
-- Remove a field that has the expected value. In a full store too.
--
-- KEYS: hash
-- ARGV: field, expected value
-- Returns: 1, or 0 if the field has another value
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
    return redis.call('HDEL', KEYS[1], ARGV[1])
end
return 0
