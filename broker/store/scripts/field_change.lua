#!lua flags=allow-oom
-- Compare-and-set of a field; an empty value means that there is none. In a full store too.
--
-- KEYS: hash
-- ARGV: field, expected value, new value
-- Returns: 1, or 0 if the field has another value
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then
    return 0
end
if ARGV[3] == '' then
    redis.call('HDEL', KEYS[1], ARGV[1])
else
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 1
