#!lua flags=allow-oom
-- Take a block of producer ids. No id may be given twice, even by a server that has lost the last it
-- gave: the counter is at least the store's clock. A thousand ids for each microsecond, so that the
-- counter never runs ahead of the clock: a server that takes over could not know by how much.
-- Microseconds are exact in Lua until the year 2255; the ids stay below 2^63 until 2262.
--
-- KEYS: next producer id
-- ARGV: how many thousands, the first thousand that is known to be free
-- Returns: the first id
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local next = tonumber(string.sub(redis.call('GET', KEYS[1]) or '', 1, -4)) or -1
local first = math.max(now, next + 1, tonumber(ARGV[2]))
redis.call('SET', KEYS[1], string.format('%.0f000', first + ARGV[1]))
return string.format('%.0f000', first)
