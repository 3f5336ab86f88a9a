#!lua flags=allow-oom
-- Replace the leader epochs of a log by those above its start, unless a new epoch has begun since.
--
-- KEYS: state of the log
-- ARGV: the epochs as they were read, those that stay
-- Returns: 1, or 0 if they have changed
if redis.call('HGET', KEYS[1], 'epochs') == ARGV[1] then
    redis.call('HSET', KEYS[1], 'epochs', ARGV[2])
    return 1
end
return 0
