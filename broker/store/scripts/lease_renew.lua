-- Extend a lease, if it is still held.
--
-- KEYS: lease
-- ARGV: holder, milliseconds
-- Returns: 1, or 0 if another holds it
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
