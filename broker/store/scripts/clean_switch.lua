-- Switch to a new generation of the cleaned part. Only if the pass started from the current generation
-- and log start, if the snapshot of the log's state covers what is about to be trimmed, and if every
-- entry that was written is there: a store that went back to an earlier state during the pass has lost
-- some, or the whole empty stream.
--
-- KEYS: state of the log, stream of the new generation
-- ARGV: generation and log start of the beginning of the pass, the offset that the snapshot must
--       cover, the new generation, its record, bytes below the log start, its number of entries
-- Returns: 1, or 0 if it must not be switched to
local state = redis.call('HMGET', KEYS[1], 'clean_current', 'start', 'snapshot_at')
if tonumber(state[1] or '0') ~= tonumber(ARGV[1]) then
    return 0
end
if tonumber(state[2] or '-1') ~= tonumber(ARGV[2]) then
    return 0
end
if tonumber(state[3] or '-1') < tonumber(ARGV[3]) then
    return 0
end
if redis.call('EXISTS', KEYS[2]) == 0 then
    return 0
end
if redis.call('XLEN', KEYS[2]) ~= tonumber(ARGV[7]) then
    return 0
end
redis.call('HSET', KEYS[1], 'clean_current', ARGV[4], 'clean', ARGV[5], 'start_bytes', ARGV[6])
return 1
