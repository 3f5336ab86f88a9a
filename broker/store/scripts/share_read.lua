-- Read the states of all share-partitions of a group.
--
-- KEYS: group, terms of its share-partitions
-- Returns: share-partition and state of each; nothing if they are those of an earlier group of this id
local terms, found = redis.call('HGETALL', KEYS[2]), {}
local identity = redis.call('HGET', KEYS[1], 'identity')
for i = 1, #terms, 2 do
    if terms[i] == 'identity' then
        if terms[i + 1] ~= identity then
            return {}
        end
    else
        found[#found + 1] = terms[i]
        found[#found + 1] = redis.call('GET', KEYS[1] .. ':share:' .. terms[i] .. ':' .. terms[i + 1]) or ''
    end
end
return found
