#!lua flags=allow-oom
-- Raise the counter of producer ids to what a worker knows. In a full store too: a worker that starts
-- serves those who read.
--
-- KEYS: next producer id
-- ARGV: thousands
local next = tonumber(string.sub(redis.call('GET', KEYS[1]) or '', 1, -4)) or -1
if next < tonumber(ARGV[1]) then
    redis.call('SET', KEYS[1], ARGV[1] .. '000')
end
