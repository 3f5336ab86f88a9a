#!lua flags=no-writes
-- Whether the lease is the caller's and nobody waits for it: for a store that refuses writes, where
-- nobody can take it either. Who begins to wait afterwards waits for a whole lease's time.
--
-- KEYS: lease
-- ARGV: token, milliseconds
-- Returns: 1 or 0
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local has = redis.call('HMGET', KEYS[1], 'token', 'waiting_at')
if has[1] == ARGV[1] and now - tonumber(has[2] or '0') > tonumber(ARGV[2]) then
    return 1
end
return 0
