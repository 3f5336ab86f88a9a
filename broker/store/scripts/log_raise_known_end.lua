#!lua flags=allow-oom
-- Note how far a living worker knew a log when the store began another history, unless the log has
-- been proved in that history. The state of a deleted log is not recreated.
--
-- KEYS: state of the log
-- ARGV: history of the store, the end that the worker knew, the leader epoch that it knew
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
