#!lua flags=allow-oom
-- Compare-and-set of a field that exists. In a full store too: deleting topics and lowering retention
-- free memory.
--
-- KEYS: hash
-- ARGV: field, expected value, new value
-- Returns: 1, or 0 if the field has another value
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
    return 1
end
return 0
