#!lua flags=allow-oom
-- Raise the known end of a log (`floor`): how far a living worker knew it when the store changed. A log
-- that is intact under the present store id is left alone, and a deleted log is not recreated.
--
-- KEYS: state of the log
-- ARGV: store id, the end that the worker knew, the leader epoch that it knew
local state = redis.call('HMGET', KEYS[1], 'start', 'history', 'floor', 'floor_epoch')
if not state[1] or state[2] == ARGV[1] then
    return 0
end
if tonumber(state[3] or '0') < tonumber(ARGV[2]) then
    redis.call('HSET', KEYS[1], 'floor', ARGV[2])
end
if tonumber(state[4] or '0') < tonumber(ARGV[3]) then
    redis.call('HSET', KEYS[1], 'floor_epoch', ARGV[3])
end
return 0
