"""The name of every key Moldau uses in Redis. README.md lists them with type and content.

A topic name has no colon, so a partition's keys never meet another topic's. Where a topic's name
would meet one of our own keys (`moldau:wake:0`), and for a topic whose name may have been used
before, the name in the keys carries `~<incarnation>`, which no topic name can contain: a worker
that still holds the earlier topic appends to a key that no longer exists, never to the new log.

What belongs together has the same hash tag, the part in braces: a Redis Cluster keeps it on one
node, where one script can reach all of it. A log's own name needs no braces: without any, all of it
is hashed. `format.py` renames the keys of stores of the first format, which had no tags.
"""

from __future__ import annotations

OWN = b"moldau:"  # the prefix of every key
CLUSTER = b"moldau:cluster"
CONTENTS = b"moldau:contents"
FORMAT = b"moldau:format"
BACKUP = b"moldau:backup"
PRODUCER_IDS = b"moldau:producer-ids"
TOPICS = b"moldau:topics"
INCARNATIONS = b"moldau:incarnations"
CONFIG = b"moldau:config"
QUOTAS = b"moldau:quotas"
GROUP_CONFIGS = b"moldau:config:groups"
CLIENT_METRICS_CONFIGS = b"moldau:config:client-metrics"
SERVING = b"moldau:serving"
LEASE = b"moldau:lease"
BARRIER = b"moldau:barrier"
CHANGES = b"moldau:changes"
MEMBERS = b"moldau:members"
EPOCHS = b"moldau:epochs"
USERS = b"moldau:users"
ACLS = b"moldau:acls"
TOKENS = b"moldau:tokens"

# Topic names that would meet our own keys, which have this second part and one more.
RESERVED = frozenset({"wake", "group", "slot", "txn"})


def stream(topic: str, incarnation: int, partition: int) -> bytes:
    """The key of a partition's log."""
    suffix = f"~{incarnation}" if incarnation or topic in RESERVED else ""
    return f"moldau:{topic}{suffix}:{partition}".encode()


def native_key(pattern: str, topic: str, partition: int) -> bytes:
    """The key of a native partition's stream. By default readable, and the same after re-creation:
    what is kept beside the stream goes with the topic, so no worker appends to a stale one."""
    if not pattern:
        return stream(topic, 0, partition)
    return pattern.replace("{topic}", topic).replace("{partition}", str(partition)).encode()


# --- beside a log ---


def hash_tag(key: bytes) -> bytes | None:
    """What a Redis Cluster hashes of a key; None if that cannot be the tag of another key."""
    _, _, rest = key.partition(b"{")
    tag, closed, _ = rest.partition(b"}")
    if tag and closed:
        return tag
    return None if b"}" in key else key


def beside(native: bytes, log: bytes) -> bytes:
    """What the names of the keys beside a native stream begin with, to be passed to `state` and
    `marks` in place of the log: they are the log's, under the tag of the stream."""
    tag = hash_tag(native)
    # Without a tag: a topic of an older version, whose key would be refused today.
    return log if native == log or tag is None else b"{%b}:%b" % (tag, log)


def _beside(log: bytes, what: bytes) -> bytes:
    return log + what if log.startswith(b"{") else b"{%b}%b" % (log, what)


def state(log: bytes) -> bytes:
    return _beside(log, b":state")


def times(log: bytes) -> bytes:
    """The time index of a log, or of a generation of its compacted prefix."""
    return _beside(log, b":times")


def aborted(log: bytes) -> bytes:
    """The aborted transactions of a log."""
    return _beside(log, b":aborted")


def marks(log: bytes) -> bytes:
    return _beside(log, b":marks")


def clean(log: bytes, generation: int) -> bytes:
    return _beside(log, b":clean:%d" % generation)


def generation(log: bytes, number: int) -> tuple[bytes, bytes]:
    """Every key of a generation of the compacted prefix."""
    name = clean(log, number)
    return name, times(name)


def cleaner(log: bytes) -> bytes:
    return _beside(log, b":cleaner")


# --- groups and transactions: everything of a slot has its tag ---


def slot(number: int) -> bytes:
    """The hash with the owner of a slot."""
    return b"{moldau:slot:%d}" % number


def groups(slot_number: int) -> bytes:
    """The index of a slot's groups."""
    return slot(slot_number) + b":groups"


def group(slot_number: int, group_id: str) -> bytes:
    """The key of a group's record."""
    return slot(slot_number) + b":group:" + escaped(group_id)


def offsets(slot_number: int, group_id: str) -> bytes:
    return group(slot_number, group_id) + b":offsets"


def shares(slot_number: int, group_id: str) -> bytes:
    """The terms of the share-partitions of a share group."""
    return group(slot_number, group_id) + b":shares"


def share(slot_number: int, group_id: str, topic_id: bytes, partition: int, term: int) -> bytes:
    """The key of a share-partition's state under one term."""
    what = b":share:%b:%d:%d" % (topic_id.hex().encode(), partition, term)
    return group(slot_number, group_id) + what


def transactions(slot_number: int) -> bytes:
    """The index of a slot's transactional ids."""
    return slot(slot_number) + b":txns"


def transaction(slot_number: int, transactional_id: str) -> bytes:
    """The key of a transactional id's record."""
    return slot(slot_number) + b":txn:" + escaped(transactional_id)


def escaped(group_id: str) -> bytes:
    return group_id.replace("%", "%25").replace(":", "%3A").encode()


def unescaped(name: bytes) -> str:
    return name.decode().replace("%3A", ":").replace("%25", "%")


# --- workers ---


def known_ends(store_id: bytes) -> bytes:
    """The workers that have reported the known ends of their logs under this store id."""
    return b"moldau:floors:" + store_id


def wake(worker: int) -> bytes:
    return b"moldau:wake:%d" % worker
