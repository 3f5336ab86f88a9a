#!lua flags=allow-oom
-- Save a snapshot of a log's producers and transactions. It only moves forward, and belongs to the
-- store id under which it was made. The state of a deleted log is not recreated.
--
-- KEYS: state of the log
-- ARGV: the offset up to which it holds, the snapshot, store id
-- Returns: 1, or 0 if it is out of date
local state = redis.call('HMGET', KEYS[1], 'start', 'snapshot_at', 'history')
if state[1] and state[3] == ARGV[3] and tonumber(ARGV[1]) > tonumber(state[2] or '-1') then
    redis.call('HSET', KEYS[1], 'snapshot_at', ARGV[1], 'snapshot', ARGV[2])
    return 1
end
return 0
