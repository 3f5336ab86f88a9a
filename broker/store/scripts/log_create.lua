-- Create the state of a log, unless it exists.
--
-- KEYS: state of the log
-- ARGV: nothing; or the store id, a worker, the end of that worker's reservation
if redis.call('HSETNX', KEYS[1], 'start', 0) == 1 and ARGV[1] then
    redis.call('HSET', KEYS[1],
        'history', ARGV[1], 'r:' .. ARGV[2], ARGV[3], 'c:' .. ARGV[2], ARGV[3])
end
return 0
