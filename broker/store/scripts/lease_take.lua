-- Take or extend a lease, unless another holds it.
--
-- KEYS: lease
-- ARGV: holder, milliseconds
-- Returns: nothing, or who holds it
local holder = redis.call('GET', KEYS[1])
if not holder or holder == ARGV[1] then
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    return false
end
return holder
