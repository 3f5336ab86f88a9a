-- Give up a lease, if it is still held.
--
-- KEYS: lease
-- ARGV: holder
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0
