#!lua flags=allow-oom
-- Remove a group and its offsets. A list of deleted identities stays for a while, so that a late write
-- cannot bring the group back.
--
-- KEYS: slot, groups of the slot, group, offsets of the group
-- ARGV: epoch, group id, identity, bytes of the list that are kept, seconds for which it is kept
-- Returns: 1; 0 if there is another group of that id since; -1 if the slot was taken
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return -1
end
local known = redis.call('HGET', KEYS[3], 'identity')
local gone = redis.call('HGET', KEYS[3], 'gone') or ''
if not string.find(gone, ARGV[3], 1, true) then
    gone = string.sub(gone .. ARGV[3] .. ' ', -tonumber(ARGV[4]))
end
redis.call('HSET', KEYS[3], 'gone', gone)
if known and known ~= ARGV[3] then
    return 0
end
redis.call('HDEL', KEYS[3], 'identity', 'revision', 'record')
for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do
    if string.sub(field, 1, 2) == 'm:' then
        redis.call('HDEL', KEYS[3], field)
    end
end
redis.call('EXPIRE', KEYS[3], ARGV[5])
redis.call('UNLINK', KEYS[4])
redis.call('SREM', KEYS[2], ARGV[2])
return 1
