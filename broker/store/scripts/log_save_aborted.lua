#!lua flags=allow-oom
-- Add aborted transactions of a log, unless it was deleted meanwhile.
--
-- KEYS: state of the log, aborted transactions of the log
-- ARGV: score and member of each
if redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
end
return redis.call('ZADD', KEYS[2], unpack(ARGV))
