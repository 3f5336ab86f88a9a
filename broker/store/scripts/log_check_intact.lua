#!lua flags=allow-oom
-- Mark a log as intact under a store id (`history`): as it is, or with a new leader epoch that begins above
-- every offset that may have been given out.
--
-- A log whose last id is beyond its end is not intact, whatever an earlier check found: another program
-- removed its last entries. A caller that does not know of an epoch has to read the log again.
--
-- KEYS: log, state of the log
-- ARGV: store id, the last id as it was read, the end of the log, the end and the epoch that the caller
--       knew, 1 if it is known by other means that nothing was lost, the caller's worker number, how much
--       to reserve for it in a new epoch
-- Returns: an `Outcome` (log_integrity.py); for a new epoch also its start, the known end and its number
local state = redis.call('HGETALL', KEYS[2])
local end_, ceiling, known_end = tonumber(ARGV[3]), 0, tonumber(ARGV[4])
local number = tonumber(ARGV[5])
local offset, sequence = string.match(ARGV[2], '(%d+)-(%d+)')
local reached = tonumber(offset) + math.min(tonumber(sequence), 1)
known_end = math.max(known_end, reached)
local reserved, store_id, epochs, start, snapshot_at = {}, nil, '', nil, -1
for i = 1, #state, 2 do
    local name, value = state[i], state[i + 1]
    if name == 'history' then
        store_id = value
    elseif name == 'epochs' then
        epochs = value
    elseif name == 'start' then
        start = value
    elseif name == 'snapshot_at' then
        snapshot_at = tonumber(value)
    elseif name == 'floor' then
        known_end = math.max(known_end, tonumber(value))
    elseif name == 'floor_epoch' then
        number = math.max(number, tonumber(value))
    elseif string.sub(name, 1, 2) == 'r:' then
        reserved[#reserved + 1] = name
        ceiling = math.max(ceiling, tonumber(value))
    elseif string.sub(name, 1, 2) == 'c:' then
        reserved[#reserved + 1] = name
    end
end
if not start then
    return {3}
end
local last, began = string.match(epochs, '(%d+):(%d+):%d+$')
if tonumber(began or '0') > end_ then
    return {4}
end
if store_id == ARGV[1] and reached <= end_ then
    return {0}
end
local info = redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' and info[i + 1] ~= ARGV[2] then
        return {4}
    end
end
if #reserved > 0 then
    redis.call('HDEL', KEYS[2], unpack(reserved))
end
redis.call('HDEL', KEYS[2], 'floor', 'floor_epoch')
redis.call('HSET', KEYS[2], 'history', ARGV[1])
local intact = not store_id or ARGV[6] == '1' or math.max(ceiling, known_end) <= end_
if intact and reached <= end_ then
    return {1}
end
local begin = math.max(ceiling, known_end, end_ + 1)
number = math.max(number, tonumber(last or '0')) + 1
if epochs ~= '' then
    epochs = epochs .. ' '
end
local text = string.format('%d:%.0f:%.0f', number, begin, end_)
local ceil = string.format('%.0f', begin + tonumber(ARGV[8]))
redis.call('XSETID', KEYS[1], string.format('%.0f-0', begin))
redis.call('HSET', KEYS[2], 'epochs', epochs .. text, 'r:' .. ARGV[7], ceil)
if snapshot_at > end_ then
    redis.call('HDEL', KEYS[2], 'snapshot', 'snapshot_at')
end
return {2, string.format('%.0f', begin), string.format('%.0f', known_end), number}
