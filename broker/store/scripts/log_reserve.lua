#!lua flags=allow-oom
-- Raise a reservation of a worker, or how much of it is confirmed.
--
-- KEYS: state of the log
-- ARGV: store id, field (r:<worker> or c:<worker>), offset
-- Returns: 1, or 0 if the store has changed
if redis.call('HGET', KEYS[1], 'history') ~= ARGV[1] then
    return 0
end
if tonumber(redis.call('HGET', KEYS[1], ARGV[2]) or '0') < tonumber(ARGV[3]) then
    redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
end
return 1
