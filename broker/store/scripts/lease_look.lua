#!lua flags=no-writes
-- Whether the lease is the caller's and nobody waited for it when it was last renewed: for a store
-- that refuses writes, where nobody can take it either. Who waited then may be out of sight, at a
-- new master that this one has not heard of. Who begins to wait afterwards waits for a whole
-- lease's time from when writes are taken.
--
-- KEYS: lease
-- ARGV: token, milliseconds
-- Returns: 1 or 0
local has = redis.call('HMGET', KEYS[1], 'token', 'until', 'waiting_at')
local duration = tonumber(ARGV[2])
local renewed, at = tonumber(has[2] or '0') - duration, tonumber(has[3] or '0')
if has[1] == ARGV[1] and renewed - at > duration then
    return 1
end
return 0
