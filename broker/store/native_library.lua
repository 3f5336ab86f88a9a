#!lua name=moldau

-- The operations of native topics that must be atomic. Ids are kept as two numbers: an offset may
-- need more than the 53 bits that a Lua number holds exactly.

local function text(number)
    return string.format('%.0f', number)
end

local function split(id)
    local ms, seq = string.match(id, '^(%d+)-(%d+)$')
    return tonumber(ms), tonumber(seq)
end

local function facts(reply)
    local found = {}
    for i = 1, #reply, 2 do
        found[reply[i]] = reply[i + 1]
    end
    return found
end

local function last_id(stream)
    local info = redis.pcall('XINFO', 'STREAM', stream)
    if info.err then
        return 0, 0
    end
    return split(facts(info)['last-generated-id'])
end

-- The id after another one, with sequences up to `most`.
local function following(ms, seq, most)
    if seq >= most then
        return ms + 1, 0
    end
    return ms, seq + 1
end

local function later(ms, seq, other_ms, other_seq)
    if other_ms > ms or (other_ms == ms and other_seq > seq) then
        return other_ms, other_seq
    end
    return ms, seq
end

-- A producer is stored as `epoch used;first,last,ms,seq;...`: its last five batches.
local REMEMBERED = 5
local LARGEST_OFFSET = 4611686018427387904 -- half of what a client can read, so that ids may still grow
local MODULUS = 2147483648

local function producer_of(saved)
    local epoch, rest = string.match(saved, '^(%-?%d+) %d+(.*)$')
    local batches = {}
    for first, last, ms, seq in string.gmatch(rest, ';(%d+),(%d+),(%d+),(%d+)') do
        batches[#batches + 1] = { first, last, ms, seq }
    end
    return tonumber(epoch), batches
end

local function saved_producer(epoch, used, batches)
    local parts = { text(epoch) .. ' ' .. text(used) }
    for i = math.max(1, #batches - REMEMBERED + 1), #batches do
        parts[#parts + 1] = table.concat(batches[i], ',')
    end
    return table.concat(parts, ';')
end

-- Checks the sequence of a batch. Returns an outcome, or nil and the batches of its producer.
local function check(saved, epoch, first, last)
    if not saved then
        return nil, {}
    end
    local known_epoch, batches = producer_of(saved)
    if epoch < known_epoch then
        return { 'EPOCH', text(known_epoch) }
    end
    local expected = 0
    if epoch == known_epoch then
        for _, batch in ipairs(batches) do
            if tonumber(batch[1]) == first and tonumber(batch[2]) == last then
                return { 'OK', batch[3], batch[4] }
            end
        end
        expected = (tonumber(batches[#batches][2]) + 1) % MODULUS
    else
        batches = {}
    end
    if first ~= expected then
        return { 'ORDER', text(expected) }
    end
    return nil, batches
end

-- How a record is written, by the layout of its arguments: the usual fields without their names, or
-- the number of words and the words. Each returns the reply and the position of the next record.
local WRITERS = {
    kvt = function(call, stream, id, args, at)
        return call('XADD', stream, id,
            'key', args[at], 'value', args[at + 1], 'timestamp', args[at + 2]), at + 3
    end,
    vt = function(call, stream, id, args, at)
        return call('XADD', stream, id, 'value', args[at], 'timestamp', args[at + 1]), at + 2
    end,
    any = function(call, stream, id, args, at)
        local last = at + args[at]
        return call('XADD', stream, id, unpack(args, at + 1, last)), last + 1
    end,
}

-- KEYS: stream, state. ARGV: the largest sequence that fits, the smallest ms and sequence to use,
-- producer id, epoch, first sequence, number of records, the name of a WRITER; then the records.
-- Returns {'OK', ms, seq} of the first record; else {'GONE'}, {'RANGE'}, {'EPOCH', known epoch} or
-- {'ORDER', expected sequence}.
local function append(keys, args)
    local stream, state = keys[1], keys[2]
    local most = tonumber(args[1])
    local producer, epoch, first, count = args[4], tonumber(args[5]), tonumber(args[6]), tonumber(args[7])
    local idempotent = producer ~= '-1'
    local field = 'p:' .. producer
    local saved = redis.call('HMGET', state, 'native', 'last', field)
    if not saved[1] then
        return { 'GONE' }
    end
    local last, batches = (first + count - 1) % MODULUS, nil
    if idempotent then
        local outcome
        outcome, batches = check(saved[3], epoch, first, last)
        if outcome then
            return outcome
        end
    end
    local time = redis.call('TIME')
    local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
    local ms, seq = later(now, 0, tonumber(args[2]), tonumber(args[3]))
    if saved[2] then
        local last_ms, last_seq = split(saved[2])
        last_ms, last_seq = following(last_ms, last_seq, most)
        ms, seq = later(ms, seq, last_ms, last_seq)
    end
    local write, call = WRITERS[args[8]], redis.call
    local limit = LARGEST_OFFSET / (most + 1)
    if ms >= limit then
        return { 'RANGE' }
    end
    local id = text(ms) .. '-' .. text(seq)
    local added, at = write(redis.pcall, stream, id, args, 9)
    if added.err then
        if not string.find(added.err, 'equal or smaller', 1, true) then
            return redis.error_reply(added.err)
        end
        -- Another client has written to the stream since: continue after its entries.
        local other_ms, other_seq = last_id(stream)
        other_ms, other_seq = following(other_ms, other_seq, most)
        ms, seq = later(ms, seq, other_ms, other_seq)
        if ms >= limit then
            return { 'RANGE' }
        end
        id = text(ms) .. '-' .. text(seq)
        added, at = write(call, stream, id, args, 9)
    end
    local first_ms, first_seq = ms, seq
    -- The remaining ids follow one that was accepted, in the same step: none can be refused.
    local prefix = text(ms) .. '-'
    for _ = 2, count do
        seq = seq + 1
        if seq > most then
            ms, seq = ms + 1, 0
            prefix = text(ms) .. '-'
        end
        id = prefix .. seq
        _, at = write(call, stream, id, args, at)
    end
    call('HSET', state, 'last', id)
    if idempotent then
        batches[#batches + 1] = { text(first), text(last), text(first_ms), text(first_seq) }
        redis.call('HSET', state, field, saved_producer(epoch, now, batches))
    end
    return { 'OK', text(first_ms), text(first_seq) }
end

-- KEYS: stream, marks, state.
-- Returns {length, first id, last id ever, number of marks, start offset, entries ever added}.
local function bounds(keys)
    local marks = redis.call('ZCARD', keys[2])
    local start = redis.call('HGET', keys[3], 'start') or '0'
    local info = redis.pcall('XINFO', 'STREAM', keys[1])
    if info.err and string.find(info.err, 'WRONGTYPE', 1, true) then
        return redis.error_reply(info.err)
    elseif info.err then
        return { 0, '', '0-0', marks, start, 0 }
    end
    local found = facts(info)
    local first = found['first-entry']
    return {
        found['length'],
        first and first[1] or '',
        found['last-generated-id'],
        marks,
        start,
        found['entries-added'],
    }
end

-- KEYS: stream, marks. ARGV: id. Returns {id of the first entry at or after it, number of marks}.
local function first_from(keys, args)
    local found = redis.call('XRANGE', keys[1], args[1], '+', 'COUNT', 1)
    return { found[1] and found[1][1] or false, redis.call('ZCARD', keys[2]) }
end

local function next_id(stream, from)
    local found = redis.call('XRANGE', stream, from, '+', 'COUNT', 1)
    return found[1] and found[1][1] or ''
end

-- KEYS: stream. ARGV: group, id, the id before it. Moves the group to an id: returns 1, or 0 if it is
-- there already. XGROUP SETID makes Redis forget the group's lag, so it is avoided where possible.
local function move(keys, args)
    local groups = redis.pcall('XINFO', 'GROUPS', keys[1])
    for _, one in ipairs(groups.err and {} or groups) do
        local found = facts(one)
        if found['name'] == args[1] then
            local after = '(' .. found['last-delivered-id']
            if next_id(keys[1], after) == next_id(keys[1], args[2]) then
                return 0
            end
            redis.call('XGROUP', 'SETID', keys[1], args[1], args[3])
            return 1
        end
    end
    return redis.error_reply('NOGROUP ' .. args[1])
end

-- KEYS: stream. ARGV: group, the last id that stays delivered, the ids after it. Undoes the delivery
-- of the latter. XGROUP SETID makes Redis forget the group's lag, so ENTRIESREAD is set as well.
local function give_back(keys, args)
    local stream, group, surplus = keys[1], args[1], #args - 2
    for _, one in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
        local found = facts(one)
        if found['name'] == group then
            local move = { 'XGROUP', 'SETID', stream, group, args[2] }
            local read = found['entries-read']
            if read and read >= surplus then
                move[6], move[7] = 'ENTRIESREAD', text(read - surplus)
            end
            redis.call(unpack(move))
            return redis.call('XACK', stream, group, unpack(args, 3))
        end
    end
    return 0
end

-- The id of a Kafka member ends in a UUID: consumers of Redis applications are left alone.
local function is_member(name)
    return string.find(name, '%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$') ~= nil
end

local function consumers(stream, group)
    local found = redis.pcall('XINFO', 'CONSUMERS', stream, group)
    local names = {}
    if not found.err then
        for i, consumer in ipairs(found) do
            names[i] = facts(consumer)['name']
        end
    end
    return names
end

local function ids_of(pending)
    local ids = {}
    for i, entry in ipairs(pending) do
        ids[i] = entry[1]
    end
    return ids
end

-- KEYS: stream. ARGV: group, id, whether Kafka members read (1 or 0). Acknowledges everything pending
-- up to the id; returns how many. If no member reads, removes members with nothing pending.
local function acknowledge(keys, args)
    local total = 0
    while true do
        local pending = redis.pcall('XPENDING', keys[1], args[1], '-', args[2], 500)
        if pending.err or #pending == 0 then
            break
        end
        total = total + redis.call('XACK', keys[1], args[1], unpack(ids_of(pending)))
    end
    if args[3] == '0' then
        for _, name in ipairs(consumers(keys[1], args[1])) do
            if is_member(name) and #redis.call('XPENDING', keys[1], args[1], '-', '+', 1, name) == 0 then
                redis.call('XGROUP', 'DELCONSUMER', keys[1], args[1], name)
            end
        end
    end
    return total
end

-- KEYS: stream. ARGV: group, member. Moves what is pending with other members to this one.
local function take_over(keys, args)
    local stream, group, member = keys[1], args[1], args[2]
    local moved = 0
    for _, name in ipairs(consumers(stream, group)) do
        if name ~= member and is_member(name) then
            while true do
                local pending = redis.call('XPENDING', stream, group, '-', '+', 500, name)
                if #pending == 0 then
                    break
                end
                local ids = ids_of(pending)
                local claim = { 'XCLAIM', stream, group, member, 0, unpack(ids) }
                claim[#claim + 1] = 'JUSTID'
                redis.call(unpack(claim))
                -- Entries that were trimmed cannot be claimed: acknowledge them.
                local left = redis.call('XPENDING', stream, group, '-', '+', 500, name)
                if #left > 0 and left[1][1] == ids[1] then
                    redis.call('XACK', stream, group, unpack(ids))
                end
                moved = moved + #ids
            end
            redis.call('XGROUP', 'DELCONSUMER', stream, group, name)
        end
    end
    return moved
end

-- KEYS: stream. ARGV: group, members. Removes those with nothing pending; returns how many are left.
local function remove_consumers(keys, args)
    local left = 0
    for i = 2, #args do
        local pending = redis.pcall('XPENDING', keys[1], args[1], '-', '+', 1, args[i])
        if not pending.err then
            if #pending == 0 then
                redis.call('XGROUP', 'DELCONSUMER', keys[1], args[1], args[i])
            else
                left = left + 1
            end
        end
    end
    return left
end

-- KEYS: stream. ARGV: id, count. Returns {the id to continue from or '', largest sequence, count}.
local function survey(keys, args)
    local found = redis.call('XRANGE', keys[1], args[1], '+', 'COUNT', args[2])
    local largest = 0
    for _, entry in ipairs(found) do
        local _, seq = split(entry[1])
        largest = math.max(largest, seq)
    end
    local following_id = ''
    if #found == tonumber(args[2]) then
        following_id = '(' .. found[#found][1]
    end
    return { following_id, text(largest), #found }
end

-- KEYS: stream. ARGV: first id, last id, most entries. Returns {where to go on, number of entries}.
local function count(keys, args)
    local found = redis.call('XRANGE', keys[1], args[1], args[2], 'COUNT', args[3])
    local following_id = ''
    if #found == tonumber(args[3]) then
        following_id = '(' .. found[#found][1]
    end
    return { following_id, #found }
end

-- KEYS: stream. ARGV: most entries, most bytes of a field. Returns the newest entries: {{id, {name,
-- value, size, ...}, number of fields}, ...}, long names and values cut off.
local function peek(keys, args)
    local most = tonumber(args[2])
    local found = redis.call('XREVRANGE', keys[1], '+', '-', 'COUNT', args[1])
    local shown = {}
    for at, entry in ipairs(found) do
        local fields = {}
        for i = 1, math.min(#entry[2], 64), 2 do
            fields[#fields + 1] = string.sub(entry[2][i], 1, most)
            fields[#fields + 1] = string.sub(entry[2][i + 1], 1, most)
            fields[#fields + 1] = #entry[2][i + 1]
        end
        shown[at] = { entry[1], fields, #entry[2] / 2 }
    end
    return shown
end

redis.register_function('moldau_append', append)
redis.register_function{ function_name = 'moldau_count', callback = count, flags = { 'no-writes' } }
redis.register_function{ function_name = 'moldau_peek', callback = peek, flags = { 'no-writes' } }
redis.register_function{ function_name = 'moldau_bounds', callback = bounds, flags = { 'no-writes' } }
redis.register_function{ function_name = 'moldau_first_from', callback = first_from, flags = { 'no-writes' } }
redis.register_function('moldau_move', move)
redis.register_function('moldau_give_back', give_back)
redis.register_function('moldau_acknowledge', acknowledge)
redis.register_function('moldau_take_over', take_over)
redis.register_function('moldau_remove_consumers', remove_consumers)
redis.register_function{ function_name = 'moldau_survey', callback = survey, flags = { 'no-writes' } }
