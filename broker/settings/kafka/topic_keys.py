"""The topic keys: all of Kafka 4.3's with their defaults, and Moldau's own.

These are declarations only. DescribeConfigs returns the documentation, which says what Moldau does
with a key and, for inert keys, why they have no effect.
"""

from typing import Final

from moldau.broker.settings.kafka.config_key import (
    ConfigKey,
    ConfigType,
    ListOf,
    OneOf,
    Range,
    ThrottledReplicas,
    Validator,
)

BOOLEAN, STRING, INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
LONG, DOUBLE, LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST

MAX_LONG: Final = "9223372036854775807"
CODECS: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer")
MIRROR_SOURCE: Final = "moldau.mirror.source"
MIRROR_ENDED: Final = ":ended"  # after its value: the mirror appends no more, and clients not yet
STORAGES: Final = ("log", "native")
# These decide how and where records are stored, and cannot change after creation.
FIXED: Final = ("moldau.storage", "moldau.native.key", "moldau.native.sequence.bits")

_NO_FILES = "Accepted for compatibility, no effect: a partition is one stream, not a set of files"
_NO_FLUSH = (
    "Accepted for compatibility, no effect: when writes reach the disk is up to the store's "
    "append-only file (--store-fsync, or appendfsync of your own Redis)."
)
_NO_REPLICATION = "Accepted for compatibility, no effect: brokers do not replicate, Redis does"


def _key(
    name: str,
    kind: ConfigType,
    default: str,
    documentation: str,
    validator: Validator | None = None,
    *,
    synonym: str | None = None,
    inert: bool = False,
) -> ConfigKey:
    return ConfigKey(name, kind, default, documentation, validator, synonym=synonym, inert=inert)


_DECLARED = (
    _key(
        "cleanup.policy",
        LIST,
        "delete",
        "What happens to old records: delete drops them by retention.ms and retention.bytes, "
        "compact keeps the newest record of each key, delete,compact does both. Empty keeps all.",
        ListOf(("compact", "delete")),
        synonym="log.cleanup.policy",
    ),
    _key(
        "compression.gzip.level",
        INT,
        "-1",
        "Level at which the broker compresses when compression.type is gzip; -1 is gzip's default.",
        Range(1, 9, also=(-1,)),
        synonym="compression.gzip.level",
    ),
    _key(
        "compression.lz4.level",
        INT,
        "9",
        "Level at which the broker compresses when compression.type is lz4.",
        Range(1, 17),
        synonym="compression.lz4.level",
    ),
    _key(
        "compression.type",
        STRING,
        "producer",
        "producer stores batches as received. Any other value makes the broker recompress the "
        "batches that come in another codec before it appends them.",
        OneOf(CODECS),
        synonym="compression.type",
    ),
    _key(
        "compression.zstd.level",
        INT,
        "3",
        "Level at which the broker compresses when compression.type is zstd.",
        Range(-131072, 22),
        synonym="compression.zstd.level",
    ),
    _key(
        "delete.retention.ms",
        LONG,
        "86400000",
        "How long compaction keeps a tombstone after the first pass that saw it, so that consumers "
        "behind the tail still see that its key is gone. It goes then even if nothing is written.",
        Range(0),
        synonym="log.cleaner.delete.retention.ms",
    ),
    _key(
        "file.delete.delay.ms",
        LONG,
        "60000",
        f"{_NO_FILES}; what retention drops is freed at once.",
        Range(0),
        synonym="log.segment.delete.delay.ms",
        inert=True,
    ),
    _key(
        "flush.messages",
        LONG,
        MAX_LONG,
        _NO_FLUSH,
        Range(1),
        synonym="log.flush.interval.messages",
        inert=True,
    ),
    _key(
        "flush.ms",
        LONG,
        MAX_LONG,
        _NO_FLUSH,
        Range(0),
        synonym="log.flush.interval.ms",
        inert=True,
    ),
    _key(
        "follower.replication.throttled.replicas",
        LIST,
        "",
        f"{_NO_REPLICATION}, so there is no follower to throttle.",
        ThrottledReplicas(),
        inert=True,
    ),
    _key(
        "index.interval.bytes",
        INT,
        "4096",
        f"{_NO_FILES}, and the time index that answers ListOffsets by timestamp has an entry about "
        "every MiB; offsets need none.",
        Range(0),
        synonym="log.index.interval.bytes",
        inert=True,
    ),
    _key(
        "leader.replication.throttled.replicas",
        LIST,
        "",
        f"{_NO_REPLICATION}, so there is no leader to throttle.",
        ThrottledReplicas(),
        inert=True,
    ),
    _key(
        "local.retention.bytes",
        LONG,
        "-2",
        "With remote.storage.enable: bytes of a partition that stay in Redis. -2 takes "
        "retention.bytes, -1 sets no limit.",
        Range(-2),
        synonym="log.local.retention.bytes",
    ),
    _key(
        "local.retention.ms",
        LONG,
        "-2",
        "With remote.storage.enable: how long records stay in Redis. -2 takes retention.ms, "
        "-1 sets no limit.",
        Range(-2),
        synonym="log.local.retention.ms",
    ),
    _key(
        "max.compaction.lag.ms",
        LONG,
        MAX_LONG,
        "Longest time a record of a compacted topic waits for compaction to look at it, however "
        "little of the log is dirty. The last entry waits for the next append.",
        Range(1),
        synonym="log.cleaner.max.compaction.lag.ms",
    ),
    _key(
        "max.message.bytes",
        INT,
        "1048588",
        "Largest record batch a producer may append, measured as it arrives (compressed). Larger "
        "ones are refused with MESSAGE_TOO_LARGE.",
        Range(0),
        synonym="message.max.bytes",
    ),
    _key(
        "message.timestamp.after.max.ms",
        LONG,
        "3600000",
        "How far ahead of the broker's clock a producer's timestamp may be; batches beyond it are "
        "refused with INVALID_TIMESTAMP. Does not apply to LogAppendTime.",
        Range(0),
        synonym="log.message.timestamp.after.max.ms",
    ),
    _key(
        "message.timestamp.before.max.ms",
        LONG,
        MAX_LONG,
        "How far behind the broker's clock a producer's timestamp may be; batches beyond it are "
        "refused with INVALID_TIMESTAMP. Does not apply to LogAppendTime.",
        Range(0),
        synonym="log.message.timestamp.before.max.ms",
    ),
    _key(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "CreateTime keeps the timestamps producers set, LogAppendTime replaces them by the "
        "broker's clock at the append.",
        OneOf(("CreateTime", "LogAppendTime")),
        synonym="log.message.timestamp.type",
    ),
    _key(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        "0.5",
        "Share of a compacted partition's bytes that must be new since the last pass before "
        "compaction takes it up again.",
        Range(0, 1),
        synonym="log.cleaner.min.cleanable.ratio",
    ),
    _key(
        "min.compaction.lag.ms",
        LONG,
        "0",
        "Shortest time a record of a compacted topic stays as it was written.",
        Range(0),
        synonym="log.cleaner.min.compaction.lag.ms",
    ),
    _key(
        "min.insync.replicas",
        INT,
        "1",
        "Copies an acks=all append needs before it is acknowledged: the store itself is one, the "
        "others are replicas of an external Redis, waited for with WAIT.",
        Range(1),
        synonym="min.insync.replicas",
    ),
    _key(
        "moldau.batch.unpacked.max.bytes",
        INT,
        str(64 << 20),
        "Largest size of the records of a compressed batch once they are unpacked; a topic whose "
        "max.message.bytes is larger allows that. A batch that unpacks to more is refused as soon "
        "as that is noticed, so that a few bytes cannot cost the broker any amount of memory.",
        Range(1 << 20, 1 << 30),
        synonym="moldau.batch.unpacked.max.bytes",
    ),
    _key(
        "moldau.batch.validation",
        STRING,
        "full",
        "What is checked of a batch before it is appended: full also unpacks it and walks over its "
        "records, so that no client can write what others cannot read; header leaves the records "
        "alone, which is cheaper, for topics whose producers are trusted.",
        OneOf(("full", "header")),
        synonym="moldau.batch.validation",
    ),
    _key(
        MIRROR_SOURCE,
        STRING,
        "",
        "Set while a topic is mirrored (moldau mirror): the id of the cluster and of the topic it "
        "comes from. Clients cannot produce to it then; --cut-over removes it.",
    ),
    _key(
        "moldau.native.key",
        STRING,
        "",
        "Of a native topic: the Redis key of a partition's stream, with {topic} and {partition} in "
        "it; fixed at creation. Empty: moldau:{topic}:{partition}. A stream named here is yours: "
        "it stays when the topic is deleted.",
    ),
    _key(
        "moldau.native.sequence.bits",
        INT,
        "10",
        "Of a native topic: an entry <ms>-<seq> has the offset (ms << bits) | seq; fixed at "
        "creation. 0 at creation, for a stream that exists: at least 10, and as many as its ids "
        "need.",
        Range(1, 20, also=(0,)),
    ),
    _key(
        "moldau.native.value",
        STRING,
        "",
        "Of a native topic: the field that is a record's value, of entries that Redis applications "
        "wrote. Empty: the field value or, where there are other fields, a JSON object of all.",
    ),
    _key(
        "moldau.storage",
        STRING,
        "log",
        "How a partition lies in Redis, fixed at creation: log appends whole record batches, "
        "native writes one readable stream entry per record, to share with Redis applications.",
        OneOf(STORAGES),
    ),
    _key(
        "preallocate",
        BOOLEAN,
        "false",
        f"{_NO_FILES}, so there is none to allocate.",
        synonym="log.preallocate",
        inert=True,
    ),
    _key(
        "remote.log.copy.disable",
        BOOLEAN,
        "false",
        "Accepted for compatibility, no effect: brokers copy nothing to the archive, a job of its "
        "own does. With true, local.retention.* must equal retention.*, as in Kafka.",
        inert=True,
    ),
    _key(
        "remote.log.delete.on.disable",
        BOOLEAN,
        "false",
        "Has to be true to turn remote.storage.enable off again, as in Kafka. What the archive "
        "already holds is not deleted.",
    ),
    _key(
        "remote.storage.enable",
        BOOLEAN,
        "false",
        "Lets records leave Redis by local.retention.* while retention.* still covers them, for "
        "topics that are archived. Refused unless remote.log.storage.system.enable is on.",
    ),
    _key(
        "retention.bytes",
        LONG,
        "-1",
        "Bytes a partition keeps under cleanup.policy=delete, oldest dropped first; -1 sets no "
        "limit.",
        synonym="log.retention.bytes",
    ),
    _key(
        "retention.ms",
        LONG,
        "604800000",
        "How long records are kept under cleanup.policy=delete; -1 sets no limit.",
        Range(-1),
        synonym="log.retention.ms",
    ),
    _key(
        "segment.bytes",
        INT,
        "1073741824",
        f"{_NO_FILES}. Retention and compaction go by entries, what was appended at once (up to a "
        "MiB); the last entry is to them what the active segment is to Kafka.",
        Range(1024 * 1024),
        synonym="log.segment.bytes",
        inert=True,
    ),
    _key(
        "segment.index.bytes",
        INT,
        "10485760",
        f"{_NO_FILES}, and needs no offset index: entries are found by their ids.",
        Range(4),
        synonym="log.index.size.max.bytes",
        inert=True,
    ),
    _key(
        "segment.jitter.ms",
        LONG,
        "0",
        f"{_NO_FILES}, so nothing is rolled.",
        Range(0),
        synonym="log.roll.jitter.ms",
        inert=True,
    ),
    _key(
        "segment.ms",
        LONG,
        "604800000",
        f"{_NO_FILES}. Retention and compaction do not wait for a segment to be rolled.",
        Range(1),
        synonym="log.roll.ms",
        inert=True,
    ),
    _key(
        "unclean.leader.election.enable",
        BOOLEAN,
        "false",
        "Accepted for compatibility, no effect: no leader is elected, any worker can serve any "
        "partition from the same stream.",
        synonym="unclean.leader.election.enable",
        inert=True,
    ),
)

TOPIC_KEYS: Final = {key.name: key for key in _DECLARED}
