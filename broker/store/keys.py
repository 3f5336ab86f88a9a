"""Every key Moldau uses in Redis.

    moldau:cluster                        string  the cluster id
    moldau:contents                       string  an id that is lost when the store is emptied
    moldau:producer-ids                   string  the next free producer id
    moldau:topics                         hash    topic name -> its record (topics.py)
    moldau:incarnations                   hash    topic name -> how often it was deleted
    moldau:config                         hash    "" or a node id -> dynamic broker configuration
    moldau:serving                        string  who serves this database, with expiry
    moldau:barrier                        string  written before a WAIT for replicas
    moldau:changes                        stream  what changed, for every worker to read
    moldau:wake:<worker>                  stream  partitions of this leader others appended to
    moldau:slot:<n>                       set     the group ids of a slot
    moldau:group:<id>                     hash    a group: identity, revision, record; who is gone
    moldau:group:<id>:offsets             hash    `topic:partition` -> committed offset
    moldau:<topic>:<partition>            stream  the log: entries `<base offset>-1`
    moldau:<topic>:<partition>:state      hash    log start, snapshot of the fold, cleaning
    moldau:<topic>:<partition>:times      zset    sparse index: running max timestamp -> place
    moldau:<topic>:<partition>:clean:<n>  stream  the compacted prefix, generation n
    moldau:<topic>:<partition>:clean:<n>:times  its time index
    moldau:<topic>:<partition>:marks      zset    of a native topic: where offsets are not by id
    moldau:members                        hash    group id -> who reads native topics in it
    moldau:<topic>:<partition>:cleaner    string  who compacts the log now, with expiry

A topic name has no colon, so nothing of a partition can meet another topic's keys. Where a
topic's name could meet one of our own (`moldau:wake:0`), and for a topic that was deleted and
created again, the name in the keys carries `~<incarnation>`, which no topic name can contain: a
worker that slept through the deletion then appends to a key that is gone, never to the new log.
"""

from __future__ import annotations

OWN = b"moldau:"  # what every key of ours begins with
CLUSTER = b"moldau:cluster"
CONTENTS = b"moldau:contents"
PRODUCER_IDS = b"moldau:producer-ids"
TOPICS = b"moldau:topics"
INCARNATIONS = b"moldau:incarnations"
CONFIG = b"moldau:config"
BARRIER = b"moldau:barrier"
CHANGES = b"moldau:changes"
MEMBERS = b"moldau:members"

# Second parts of our own keys that are followed by something a client or worker chose.
RESERVED = frozenset({"wake", "group", "slot", "txn"})


def stream(topic: str, incarnation: int, partition: int) -> bytes:
    """The key of a partition's log."""
    suffix = f"~{incarnation}" if incarnation or topic in RESERVED else ""
    return f"moldau:{topic}{suffix}:{partition}".encode()


def state(log: bytes) -> bytes:
    return log + b":state"


def times(log: bytes) -> bytes:
    return log + b":times"


def marks(log: bytes) -> bytes:
    return log + b":marks"


def clean(log: bytes, generation: int) -> bytes:
    return log + b":clean:%d" % generation


def generation(log: bytes, number: int) -> tuple[bytes, bytes]:
    """Every key of a generation of the compacted prefix."""
    name = clean(log, number)
    return name, times(name)


def cleaner(log: bytes) -> bytes:
    return log + b":cleaner"


def group(group_id: str) -> bytes:
    """The key of a group's record."""
    return b"moldau:group:" + _escaped(group_id)


def offsets(group_id: str) -> bytes:
    return group(group_id) + b":offsets"


def slot(number: int) -> bytes:
    return b"moldau:slot:%d" % number


def _escaped(group_id: str) -> bytes:
    return group_id.replace("%", "%25").replace(":", "%3A").encode()


def wake(worker: int) -> bytes:
    return b"moldau:wake:%d" % worker
