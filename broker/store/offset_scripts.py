"""The scripts that write a group's offsets. Each compares the epoch of the slot first (`fence.py`).

Fields of the hash: `<topic>:<partition>` has what is committed, and
`~<producer id>:<topic>:<partition>` what an open transaction commits: `<number>:<order>:<offset>`.
No topic's name begins with a tilde. An empty offset was overtaken by a later commit: it still makes
the partition unstable, until the transaction's marker comes and leaves what is committed alone.

What a marker commits is decided here, not in the worker: only the store knows in which order
commits and markers arrived, and which of them it refused.
"""

from __future__ import annotations

import hashlib

from broker.store.fence import EVEN_IF_FULL, FENCE

# `unpack` takes no more than 8,000 words.
_SET = (
    "local new = 0 for i = first, #ARGV, 4000 do "
    "new = new + redis.call('HSET', KEYS[3], unpack(ARGV, i, math.min(i + 3999, #ARGV))) end "
    "if new > 0 then redis.call('SADD', KEYS[2], ARGV[2]) end return 1"
)

# Offsets that exist are those of a group in the index.
COMMIT = FENCE + "local first = 3 " + _SET
COMMIT_SHA = hashlib.sha1(COMMIT.encode(), usedforsecurity=False).hexdigest()

# The same where transactions may have pending offsets of these partitions: ARGV[3] fields.
OVERTAKE = (
    FENCE + "local first = 4 + ARGV[3] for i = 4, first - 1 do "
    "local found = redis.call('HGET', KEYS[3], ARGV[i]) "
    "if found then redis.call('HSET', KEYS[3], ARGV[i], string.match(found, '^%d+:%d+:')) end end "
    + _SET
)

DROP = (
    EVEN_IF_FULL + FENCE + "for i = 2, #ARGV, 4000 do "
    "redis.call('HDEL', KEYS[2], unpack(ARGV, i, math.min(i + 3999, #ARGV))) end return 1"
)

# A marker: of transaction ARGV[2] (-1: any), ARGV[3] is 1 if it was committed. For each partition
# its field, the producer's pending one, and how many follow of other producers. Returns for each
# partition the order of the offset that was committed (0: none), and what is there now.
END = (
    EVEN_IF_FULL + FENCE + "local reply, at = {}, 4 while at <= #ARGV do "
    "local field, own, others = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]) "
    "local found, order = redis.call('HGET', KEYS[2], own), 0 "
    "if found then "
    "local number, sent, value = string.match(found, '^(%d+):(%d+):(.*)$') "
    "if ARGV[2] == '-1' or ARGV[2] == number then "
    "if ARGV[3] == '1' and value ~= '' then "
    "order = tonumber(sent) redis.call('HSET', KEYS[2], field, value) "
    "for i = at + 3, at + 2 + others do "
    "local other = redis.call('HGET', KEYS[2], ARGV[i]) "
    "if other then local head, before = string.match(other, '^(%d+:(%d+):)') "
    "if tonumber(before) < order then redis.call('HSET', KEYS[2], ARGV[i], head) end end end "
    "end redis.call('HDEL', KEYS[2], own) end end "
    "table.insert(reply, order) table.insert(reply, redis.call('HGET', KEYS[2], field)) "
    "at = at + 3 + others end return reply"
)
