#!lua flags=allow-oom
-- The lease of the broker that serves this database: take it, or keep it.
--
-- KEYS: lease, serving
-- ARGV: mode, token, holder, milliseconds, known
--   mode: `keep`: the caller's lease is not over; `again`: it had the lease, and could not renew it
--   in time; `take`: it never had it; `look`: it only asks, and nothing is written
--   known: 1 if the caller has seen a lease here before
-- Returns: verdict, when the lease ends and what time it is by the store's TIME, the holder
--   verdicts: 0 yours; 1 another's; 2 wait, the store has changed; 3 you have lost it
local lease, serving = KEYS[1], KEYS[2]
local mode, token, holder = ARGV[1], ARGV[2], ARGV[3]
local duration, known = tonumber(ARGV[4]), ARGV[5] == '1'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local info = redis.call('INFO', 'server', 'replication')
local store = (string.match(info, 'run_id:(%w+)') or '') .. ':'
    .. (string.match(info, 'master_replid2:(%w+)') or '') .. ':'
    .. (string.match(info, 'second_repl_offset:(%-?%d+)') or '')
local has = redis.call('HMGET', lease, 'token', 'until', 'store', 'open', 'waiting_since', 'waiting_at')
local owner, ends, is_open = has[1] or '', tonumber(has[2] or '0'), has[4] == '1'
local since, at = tonumber(has[5] or '0'), tonumber(has[6] or '0')
local other = redis.call('GET', serving)

-- A version of Moldau that has no leases.
if other and not string.find(other, '"token"', 1, true) then
    return {1, now + math.max(redis.call('PTTL', serving), 0), now, other}
end
local is_mine = owner == token
if mode == 'look' then
    if is_mine or not has[2] then
        return {0, ends, now, other or ''}
    end
    return {(is_open or has[3] ~= store) and 2 or 3, ends, now, other or ''}
end

-- A store that restarted, failed over or was emptied may have lost renewals, or the take of another
-- holder: leases begin again, and who has one that is not over by its own clock may keep it.
if (ends > 0 and has[3] ~= store) or (not has[2] and known) then
    -- Nobody waited when it was last renewed: nobody can have taken it since.
    if ends - at > 2 * duration then
        since, at = 0, 0
        redis.call('HDEL', lease, 'waiting_since', 'waiting_at')
    end
    ends, is_open = now + duration, true
    redis.call('HSET', lease, 'token', owner, 'until', ends, 'store', store, 'open', '1')
end

if mode == 'keep' then
    if not (is_mine or is_open or not has[2]) then
        return {3, ends, now, other or ''}
    end
elseif mode == 'again' then
    if not (is_mine or not has[2]) then
        return {3, ends, now, other or ''}
    end
    -- Somebody who waited may have taken it, which the store has forgotten.
    if is_open and at > 0 and now < ends then
        return {2, ends, now, other or ''}
    end
elseif not is_mine and ends > 0 then
    -- Taken from a holder that did not release it: its end has passed, and the holder had a whole
    -- lease's time to see that somebody waits.
    if now - at >= duration then
        since = now
    end
    if now - at >= 500 then
        redis.call('HSET', lease, 'waiting_since', since, 'waiting_at', now)
    end
    if now < ends or now - since < duration then
        return {1, math.max(ends, since + duration), now, other or ''}
    end
end
redis.call('HSET', lease, 'token', token, 'until', now + duration, 'store', store)
redis.call('HDEL', lease, 'open')
redis.call('SET', serving, holder, 'PX', duration)
return {0, now + duration, now, holder}
