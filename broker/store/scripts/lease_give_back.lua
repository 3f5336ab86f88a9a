#!lua flags=allow-oom
-- Release the lease of the broker that serves this database, if the caller has it.
--
-- KEYS: lease, serving
-- ARGV: token, holder
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
    return 0
end
redis.call('HSET', KEYS[1], 'token', '', 'until', 0)
if redis.call('GET', KEYS[2]) == ARGV[2] then
    redis.call('DEL', KEYS[2])
end
return 1
