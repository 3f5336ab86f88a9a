#!lua flags=allow-oom
-- Raise the last id of a native topic's stream that was restored from a backup: its offsets are ids, and
-- the next one must be above all that were given out after the backup.
--
-- KEYS: stream
-- ARGV: milliseconds of the id
-- Returns: the last id, or -1 if there is no such stream
local info = redis.pcall('XINFO', 'STREAM', KEYS[1])
if info.err then
    return -1
end
for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
        if tonumber(string.match(info[i + 1], '^(%d+)-')) >= tonumber(ARGV[1]) then
            return info[i + 1]
        end
    end
end
redis.call('XSETID', KEYS[1], ARGV[1] .. '-0')
return ARGV[1] .. '-0'
