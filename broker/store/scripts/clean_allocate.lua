-- Allocate the number of a new generation of the cleaned part. The state of a deleted log is not
-- recreated.
--
-- KEYS: state of the log
-- Returns: the number, or 0 if the log is gone
if redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
end
return redis.call('HINCRBY', KEYS[1], 'clean_allocated', 1)
