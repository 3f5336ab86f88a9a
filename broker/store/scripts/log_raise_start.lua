#!lua flags=allow-oom
-- Raise the log start. It only moves up, in whatever order updates arrive; its bytes count within the
-- generation of the cleaned part in which they were measured. The state of a deleted log is not
-- recreated. Retention frees memory, so this runs in a full store too.
--
-- KEYS: state of the log
-- ARGV: log start, bytes below it, generation of the cleaned part
-- Returns: 1; 0 if it is as high already; -1 if the log is gone or has another generation
local state = redis.call('HMGET', KEYS[1], 'start', 'clean_current')
if not state[1] or tonumber(state[2] or '0') ~= tonumber(ARGV[3]) then
    return -1
end
if tonumber(ARGV[1]) > tonumber(state[1]) then
    redis.call('HSET', KEYS[1], 'start', ARGV[1], 'start_bytes', ARGV[2])
    return 1
end
return 0
