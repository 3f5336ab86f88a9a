#!lua flags=allow-oom
-- Run one command even if the store is full.
--
-- KEYS: key
-- ARGV: command, its arguments behind the key
return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))
