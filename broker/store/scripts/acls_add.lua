#!lua flags=allow-oom
-- Add ACLs; one that exists stays as it is. In a full store too: it must be possible to take access away
-- at any time.
--
-- KEYS: ACLs
-- ARGV: text and record of each
for i = 1, #ARGV, 2 do
    redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1])
end
