#!lua flags=allow-oom
-- Prepare a log that was restored from a backup: the next worker that loads it begins a new leader epoch,
-- above everything that the backup knows and a margin, for what the broker gave out after the backup.
--
-- The margin is written as a reservation: that is what it stands for, offsets that may have been given
-- out. A log without a store id would be taken for one whose store has never changed.
--
-- KEYS: log, state of the log
-- ARGV: margin of offsets, margin of leader epochs
-- Returns: where the new epoch begins, -1 if there is no such log, -2 if its offsets are used up
local state = redis.call('HGETALL', KEYS[2])
local reached, number, start, store_id = 0, 0, nil, nil
for i = 1, #state, 2 do
    local name, value = state[i], state[i + 1]
    if name == 'start' then
        start = value
        reached = math.max(reached, tonumber(value))
    elseif name == 'history' then
        store_id = value
    elseif name == 'floor' or string.sub(name, 1, 2) == 'r:' then
        reached = math.max(reached, tonumber(value))
    elseif name == 'floor_epoch' then
        number = math.max(number, tonumber(value))
    elseif name == 'epochs' then
        number = math.max(number, tonumber(string.match(value, '(%d+):%d+:%d+$') or '0'))
    end
end
if not start then
    return -1
end
local info = redis.pcall('XINFO', 'STREAM', KEYS[1])
if info.err then
    return -1
end
for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
        reached = math.max(reached, tonumber(string.match(info[i + 1], '^(%d+)-')))
    end
end
local begins = reached + tonumber(ARGV[1])
if begins >= 9007199254740992 then -- 2^53: Lua's numbers are exact below
    return -2
end
redis.call('HSET', KEYS[2], 'r:0', string.format('%.0f', begins),
    'floor_epoch', string.format('%.0f', number + tonumber(ARGV[2])))
if not store_id then
    redis.call('HSET', KEYS[2], 'history', 'restored')
end
return string.format('%.0f', begins)
