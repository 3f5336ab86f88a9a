#!lua flags=allow-oom
-- Apply a transaction's marker to the pending offsets of its producer.
--
-- KEYS: slot, offsets of the group
-- ARGV: epoch, number of the transaction (-1: any), 1 if it was committed; then for each partition its
--       field, the producer's pending field, how many fields of other producers follow, these fields
-- Returns: for each partition the order of the offset that was committed (0: none) and what is there
--          now; or -1 if the slot was taken
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
    return -1
end
local reply, at = {}, 4
while at <= #ARGV do
    local field, own, others = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
    local found, order = redis.call('HGET', KEYS[2], own), 0
    if found then
        local number, sent, value = string.match(found, '^(%d+):(%d+):(.*)$')
        if ARGV[2] == '-1' or ARGV[2] == number then
            if ARGV[3] == '1' and value ~= '' then
                order = tonumber(sent)
                redis.call('HSET', KEYS[2], field, value)
                for i = at + 3, at + 2 + others do
                    local other = redis.call('HGET', KEYS[2], ARGV[i])
                    if other then
                        local head, before = string.match(other, '^(%d+:(%d+):)')
                        if tonumber(before) < order then
                            redis.call('HSET', KEYS[2], ARGV[i], head)
                        end
                    end
                end
            end
            redis.call('HDEL', KEYS[2], own)
        end
    end
    table.insert(reply, order)
    table.insert(reply, redis.call('HGET', KEYS[2], field))
    at = at + 3 + others
end
return reply
