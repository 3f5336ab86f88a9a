-- Take a share-partition: begin a term of it. The string with its state is renamed to the new term, so
-- that no write under an older one finds it. A term is not below the store's clock: a store that lost its
-- tail gives none twice.
--
-- KEYS: group, terms of its share-partitions
-- ARGV: share-partition, the term that this worker held (0: none), the identity of the group under which
--       it did
-- Returns: the new term (0: there is no such share group), the identity of the group, 1 if nobody else
--          has had it since the held term, the state
local group = redis.call('HMGET', KEYS[1], 'type', 'identity')
if group[1] ~= 'share' then
    return {0, '', 0, ''}
end
local place, held = ARGV[1], tonumber(ARGV[2])
if redis.call('HGET', KEYS[2], 'identity') ~= group[2] then
    -- Left behind by an earlier group of this id.
    local terms = redis.call('HGETALL', KEYS[2])
    for i = 1, #terms, 2 do
        redis.call('UNLINK', KEYS[1] .. ':share:' .. terms[i] .. ':' .. terms[i + 1])
    end
    redis.call('DEL', KEYS[2])
    redis.call('HSET', KEYS[2], 'identity', group[2])
end
local stored = redis.call('HGET', KEYS[2], place)
local before = tonumber(stored or '0')
local is_kept = held > 0 and before <= held and ARGV[3] == group[2]
local now = redis.call('TIME')
local term = math.max(before + 1, held + 1, now[1] * 1000 + math.floor(now[2] / 1000))
local name = string.format('%.0f', term)
local key = KEYS[1] .. ':share:' .. place .. ':' .. name
local old = stored and KEYS[1] .. ':share:' .. place .. ':' .. stored
if old and redis.call('EXISTS', old) == 1 then
    redis.call('RENAME', old, key)
else
    redis.call('SET', key, '')
end
redis.call('HSET', KEYS[2], place, name)
return {term, group[2], is_kept and 1 or 0, redis.call('GET', key)}
