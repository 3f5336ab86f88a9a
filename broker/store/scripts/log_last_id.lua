-- Return the last id of a stream, 0-0 if there is none. XINFO alone would send its first and last
-- entry along.
--
-- KEYS: log
local info = redis.pcall('XINFO', 'STREAM', KEYS[1])
if info.err then
    return '0-0'
end
for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
        return info[i + 1]
    end
end
