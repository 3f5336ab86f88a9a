#!lua flags=allow-oom
-- Remove the states of share-partitions: those of some topics, or all of them. In a full store too.
--
-- KEYS: slot, group, terms of its share-partitions
-- ARGV: epoch, identity of the group, the ids of the topics (none: everything)
-- Returns: how many were removed of each topic; of none, 1; 0 if there is another group of this id since;
--          -1 if the slot was taken
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return -1
end
local terms = redis.call('HGETALL', KEYS[3])
local removed, is_ours = {}, false
for i = 3, #ARGV do
    removed[ARGV[i]] = 0
end
for i = 1, #terms, 2 do
    is_ours = is_ours or (terms[i] == 'identity' and terms[i + 1] == ARGV[2])
end
if not is_ours then
    return 0
end
for i = 1, #terms, 2 do
    local topic = string.match(terms[i], '^(.*):')
    if topic and (#ARGV == 2 or removed[topic]) then
        redis.call('UNLINK', KEYS[2] .. ':share:' .. terms[i] .. ':' .. terms[i + 1])
        redis.call('HDEL', KEYS[3], terms[i])
        if removed[topic] then
            removed[topic] = removed[topic] + 1
        end
    end
end
if #ARGV == 2 then
    redis.call('DEL', KEYS[3])
    return 1
end
local counts = {}
for i = 3, #ARGV do
    counts[#counts + 1] = removed[ARGV[i]]
end
return counts
