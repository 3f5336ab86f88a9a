#!lua flags=allow-oom
-- Give up the reservation of a worker: it appends nothing more under it.
--
-- KEYS: state of the log
-- ARGV: store id, worker
if redis.call('HGET', KEYS[1], 'history') ~= ARGV[1] then
    return 0
end
return redis.call('HDEL', KEYS[1], 'r:' .. ARGV[2], 'c:' .. ARGV[2])
