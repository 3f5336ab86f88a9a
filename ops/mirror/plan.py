"""The decisions of a mirror, as pure functions: no I/O, no clock.

What is mirrored, where a partition goes on, how what was fetched is cut into chunks, which
configuration, ACLs and committed offsets are copied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from moldau.broker.security.acl import WILDCARD, Acl
from moldau.broker.security.resources import PatternType, ResourceType
from moldau.broker.settings.kafka.topic_keys import MIRROR_SOURCE, TOPIC_KEYS
from moldau.broker.wire.batch import (
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    BatchHeader,
    Buffer,
    CorruptBatch,
    checksum,
    read_header,
)
from moldau.ops.client import TopicPartition

CHUNK_BYTES = 1 << 20  # what is appended at once; a larger batch is a chunk of its own
MAGIC = 2
MAGIC_AT = 16

# Topics that a cluster keeps for itself: they mean nothing in another one.
_INTERNAL = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
        "__remote_log_metadata",
    }
)
_OWN_PREFIX = "__moldau_"

# Why a key that Moldau has is not copied.
_NOT_COPIED = {
    "min.insync.replicas": "here it counts replicas of the store",
    "remote.storage.enable": "here it means an archive, which has to be set up first",
    "remote.log.copy.disable": "it belongs to remote.storage.enable",
    "remote.log.delete.on.disable": "it belongs to remote.storage.enable",
    "local.retention.ms": "it belongs to remote.storage.enable",
    "local.retention.bytes": "it belongs to remote.storage.enable",
    "leader.replication.throttled.replicas": "it names brokers of the other cluster",
    "follower.replication.throttled.replicas": "it names brokers of the other cluster",
    "moldau.storage": "a mirror is an ordinary topic",
    "moldau.native.key": "a mirror is an ordinary topic",
    "moldau.native.sequence.bits": "a mirror is an ordinary topic",
    "moldau.native.value": "a mirror is an ordinary topic",
    MIRROR_SOURCE: "it is a mirror itself there",
}


class Refused(Exception):
    """A topic cannot be mirrored, or no longer; the text says why, and what to do."""


# --- which topics ---


def parse_pattern(text: str) -> re.Pattern[str]:
    """A pattern that has to match a whole name. Raises ValueError."""
    try:
        return re.compile(text)
    except re.error as fault:
        raise ValueError(f"{text!r} is not a regular expression: {fault}") from None


def chosen(names: Iterable[str], pattern: re.Pattern[str]) -> list[str]:
    """The names that the pattern matches, sorted, without those a cluster keeps for itself."""
    return sorted(
        name
        for name in names
        if pattern.fullmatch(name) and name not in _INTERNAL and not name.startswith(_OWN_PREFIX)
    )


def mark_of(cluster_id: str | None, topic_id: bytes) -> str:
    """What a mirror's topic is marked with: the topic that was deleted and made again is another
    one."""
    return f"{cluster_id or 'unknown'}:{topic_id.hex()}"


# --- where a partition goes on ---


class Bounds(NamedTuple):
    start: int
    end: int


def find_place(source: Bounds, target: Bounds) -> int:
    """The offset to fetch from, when Moldau's log ends at `target.end`. Raises Refused.

    What the source has removed in between, by retention, stays a hole.
    """
    if target.end > source.end:
        raise Refused(
            f"it ends at offset {target.end} here, and at {source.end} at the source: these are "
            "not the same offsets; delete it here, and it is mirrored again"
        )
    return max(target.end, source.start)


# --- chunks ---


class Chunk(NamedTuple):
    """Whole batches, to be appended where the log ends at `at`."""

    at: int
    end: int
    records: int
    data: memoryview
    epoch: int = -1  # the source's leader epoch of the last batch; -1: not known


def cut_chunks(records: Buffer, at: int) -> Iterator[Chunk]:
    """Cut the batches of a Fetch reply into chunks, the first of which is for a log that ends at
    `at`. What lies before it is left out, and so is a batch that the reply cut off.

    Raises Refused.
    """
    view = memoryview(records)
    position, size = 0, len(view)
    begun = 0  # position of the chunk that is gathered
    first = following = at
    gathered, epoch = 0, -1
    while size - position >= HEADER_SIZE:
        header = _header_at(view, position)
        if header is None:
            break  # cut off
        behind = position + header.size
        if following == first and header.next_offset <= first:
            begun = behind
        elif header.base_offset < following:
            raise Refused(
                f"the batch from offset {header.base_offset} to {header.next_offset - 1} begins "
                f"before offset {following}, where the log ends here: these are not the same "
                "batches; delete the topic here, and it is mirrored again"
            )
        else:
            if position > begun and behind - begun > CHUNK_BYTES:
                yield Chunk(at, following, gathered, view[begun:position], epoch)
                at, begun, gathered = following, position, 0
            following, epoch = header.next_offset, header.leader_epoch
            gathered += max(header.record_count, 0)
        position = behind
    if following > at:
        yield Chunk(at, following, gathered, view[begun:position], epoch)


def _header_at(view: memoryview, position: int) -> BatchHeader | None:
    """None: the batch is cut off. Raises Refused."""
    magic = view[position + MAGIC_AT]
    offset = int.from_bytes(view[position : position + 8], "big", signed=True)
    if magic != MAGIC:
        raise Refused(
            f"at offset {offset} it has records in the format {magic} of Kafka before 0.11, which "
            "Moldau does not store; let it be consumed and produced again, or wait until it has "
            "expired"
        )
    length = int.from_bytes(view[position + 8 : position + 12], "big", signed=True)
    if length >= HEADER_SIZE - LENGTH_OVERHEAD and position + LENGTH_OVERHEAD + length > len(view):
        return None
    try:
        return read_header(view, position)
    except CorruptBatch as fault:
        raise Refused(f"the batch at offset {offset} is damaged at the source: {fault}") from None


def filler(at: int, end: int) -> Chunk:
    """An empty batch that ends at `end`: the log of the source ends there, and nothing is left of
    what lay before. Kafka's compaction leaves such batches as well."""
    fields = (end - 1, HEADER_SIZE - LENGTH_OVERHEAD, 0, MAGIC, 0, 0, 0, -1, -1, -1, -1, -1, 0)
    batch = bytearray(HEADER.pack(*fields))
    batch[17:21] = checksum(batch).to_bytes(4, "big")
    return Chunk(at, end, 0, memoryview(batch))


# --- configuration ---


class SourceConfig(NamedTuple):
    name: str
    value: str | None
    is_default: bool


class Configs(NamedTuple):
    """What a topic gets, and why it does not get the rest: by key, what to say."""

    copied: dict[str, str]
    left_out: dict[str, str]


def configs_to_copy(found: Iterable[SourceConfig]) -> Configs:
    """What was set for a topic of the source, or for all of them by its brokers."""
    copied: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name, value, is_default in found:
        if is_default or value is None:
            continue
        key = TOPIC_KEYS.get(name)
        if key is None:
            left_out[name] = f"{name}={value}: Moldau has no such key"
        elif name in _NOT_COPIED:
            if value != key.default:
                left_out[name] = f"{name}={value}: {_NOT_COPIED[name]}"
        else:
            copied[name] = value
    return Configs(copied, left_out)


def config_changes(
    wanted: Mapping[str, str], present: Mapping[str, str | None]
) -> dict[str, str | None]:
    """What to set, and with None what to reset. `present`: what the topic itself sets."""
    changes: dict[str, str | None] = {
        name: value for name, value in wanted.items() if present.get(name) != value
    }
    for name in present:
        if name not in wanted and name not in _NOT_COPIED and not name.startswith("moldau."):
            changes[name] = None
    return changes


# --- ACLs ---

_COPIED_ACLS = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)


def missing_acls(
    source: Iterable[Acl], present: Collection[Acl], pattern: re.Pattern[str]
) -> list[Acl]:
    """The ACLs to create: of groups, of transactional ids, and of topics that are mirrored.

    Those of the cluster say what may be done to another cluster, and stay there.
    """
    return [
        acl
        for acl in source
        if acl.resource in _COPIED_ACLS and acl not in present and _concerns(acl, pattern)
    ]


def _concerns(acl: Acl, pattern: re.Pattern[str]) -> bool:
    if acl.resource is not ResourceType.TOPIC or acl.pattern is PatternType.PREFIXED:
        return True
    return acl.name == WILDCARD or pattern.fullmatch(acl.name) is not None


# --- committed offsets ---


class Commit(NamedTuple):
    offset: int
    metadata: str


Commits = Mapping[TopicPartition, Commit]


def offsets_to_commit(
    source: Commits,
    present: Mapping[TopicPartition, int],
    written: Commits,
    end_of: Callable[[TopicPartition], int | None],
) -> dict[TopicPartition, Commit]:
    """What of a group's offsets to commit here. `written`: what this mirror has committed.

    An offset that the log has not reached yet waits. One that is ahead here was committed by
    consumers that were moved already, and stays; an offset that only the mirror has written
    follows the source in either direction.
    """
    found = {}
    for place, commit in source.items():
        end = end_of(place)
        if end is None or commit.offset > end:
            continue
        here = present.get(place)
        last = written.get(place)
        is_ours = last is not None and here == last.offset
        if here is not None and here == commit.offset and (last is None or last == commit):
            continue
        if here is None or is_ours or here < commit.offset:
            found[place] = commit
    return found
