#!lua flags=allow-oom
-- Remove offsets of a group.
--
-- KEYS: slot, offsets of the group
-- ARGV: epoch, fields
-- Returns: 1, or -1 if the slot was taken
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return -1
end
for i = 2, #ARGV, 4000 do
    redis.call('HDEL', KEYS[2], unpack(ARGV, i, math.min(i + 3999, #ARGV)))
end
return 1
