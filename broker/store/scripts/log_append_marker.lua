#!lua flags=allow-oom
-- Append even if the store is full. Only for transaction markers: they pass through Lua, but have 78
-- bytes each.
--
-- KEYS: log
-- ARGV: entry id, record batches
return redis.call('XADD', KEYS[1], 'NOMKSTREAM', ARGV[1], 'b', ARGV[2])
