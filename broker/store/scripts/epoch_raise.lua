#!lua flags=allow-oom
-- Raise the leader epoch of a log in the table of all logs. In a full store too: fetches are fenced until
-- clients learn of the epoch.
--
-- KEYS: leader epochs
-- ARGV: key of the log, epoch
-- Returns: 1, or 0 if it is as high already
if tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0') < tonumber(ARGV[2]) then
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    return 1
end
return 0
