#!lua flags=allow-oom
-- Compare-and-set of a user; an empty value means that there is none. The field '' gets a secret with the
-- first user. In a full store too: it must be possible to take access away at any time.
--
-- KEYS: users
-- ARGV: name, expected value, new value, secret
-- Returns: 1, or 0 if the user has another value
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then
    return 0
end
redis.call('HSETNX', KEYS[1], '', ARGV[4])
if ARGV[3] == '' then
    redis.call('HDEL', KEYS[1], ARGV[1])
else
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 1
