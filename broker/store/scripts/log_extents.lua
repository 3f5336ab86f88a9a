#!lua flags=no-writes,allow-oom
-- Count the entries of streams and read their last ids. XINFO alone would send the first and the last
-- entry of each along.
--
-- KEYS: streams
-- Returns: for each the number of entries and the last id; 0 and 0-0 if there is none
local found = {}
for _, key in ipairs(KEYS) do
    local length, last_id = 0, '0-0'
    local info = redis.pcall('XINFO', 'STREAM', key)
    if not info.err then
        for i = 1, #info, 2 do
            if info[i] == 'length' then
                length = info[i + 1]
            elseif info[i] == 'last-generated-id' then
                last_id = info[i + 1]
            end
        end
    end
    found[#found + 1] = length
    found[#found + 1] = last_id
end
return found
