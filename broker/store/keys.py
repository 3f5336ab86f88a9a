"""The name of every key Moldau uses in Redis. README.md lists them with type and content.

A topic name has no colon, so a partition's keys never meet another topic's. Where a topic's name
would meet one of our own keys (`moldau:wake:0`), and for a topic that was deleted and created
again, the name in the keys carries `~<incarnation>`, which no topic name can contain: a worker that
missed the deletion then appends to a key that no longer exists, never to the new log.
"""

from __future__ import annotations

OWN = b"moldau:"  # the prefix of every key
CLUSTER = b"moldau:cluster"
CONTENTS = b"moldau:contents"
PRODUCER_IDS = b"moldau:producer-ids"
TOPICS = b"moldau:topics"
INCARNATIONS = b"moldau:incarnations"
CONFIG = b"moldau:config"
SERVING = b"moldau:serving"
BARRIER = b"moldau:barrier"
CHANGES = b"moldau:changes"
MEMBERS = b"moldau:members"

# Topic names that would meet our own keys, which have this second part and one more.
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
