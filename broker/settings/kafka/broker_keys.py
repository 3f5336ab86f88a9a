"""The broker keys that clients and consoles look at, and those that tune Moldau.

These are declarations only. Defaults, and which keys can change at runtime, are Kafka 4.3's, except
that keys of features that are not served are read-only.
"""

from typing import Final

from moldau.broker.settings.kafka.authorization_keys import AUTHORIZATION_KEYS
from moldau.broker.settings.kafka.config_key import ConfigKey, ConfigType, ListOf, Range, Validator
from moldau.broker.settings.kafka.consumer_keys import CONSUMER_KEYS
from moldau.broker.settings.kafka.inert_keys import INERT_KEYS
from moldau.broker.settings.kafka.limit_keys import LIMIT_KEYS
from moldau.broker.settings.kafka.sasl_keys import SASL_KEYS
from moldau.broker.settings.kafka.ssl_keys import SSL_KEYS
from moldau.broker.settings.kafka.telemetry_keys import TELEMETRY_KEYS
from moldau.broker.settings.kafka.token_keys import TOKEN_KEYS
from moldau.broker.settings.kafka.topic_keys import MAX_LONG, TOPIC_KEYS

BOOLEAN, STRING, INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
LONG, LIST = ConfigType.LONG, ConfigType.LIST

MAX_INT: Final = "2147483647"
HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000
# The number of slots that spread groups and transactional ids over the workers; fixed.
SLOTS: Final = 50

# -1 is "no limit"; 0 would drop records as they are written.
_UNLIMITED_OR_POSITIVE = Range(1, also=(-1,))
# Topic keys whose broker key is null by default, and its fallbacks in order of precedence.
_FALLBACKS = {
    "retention.ms": ("log.retention.minutes", "log.retention.hours"),
    "segment.ms": ("log.roll.hours",),
    "segment.jitter.ms": ("log.roll.jitter.hours",),
    "flush.ms": ("log.flush.scheduler.interval.ms",),
}


def _topic_default(topic: ConfigKey, synonym: str) -> ConfigKey:
    """The dynamic broker key that is the default of the topic key `topic`."""
    fallbacks = _FALLBACKS.get(topic.name, ())
    return ConfigKey(
        synonym,
        topic.type,
        None if fallbacks else topic.default,
        f"For topics that do not set {topic.name}. {topic.documentation}",
        _UNLIMITED_OR_POSITIVE if topic.name == "retention.ms" else topic.validator,
        fallbacks=fallbacks,
        inert=topic.inert,
    )


def _fallback(
    name: str, kind: ConfigType, default: str | None, milliseconds: int, validator: Validator
) -> ConfigKey:
    """A coarser key that is used when the finer one is not set."""
    finer = next(topic for topic, names in _FALLBACKS.items() if name in names)
    return ConfigKey(
        name,
        kind,
        default,
        f"Used where {TOPIC_KEYS[finer].synonym} is not set. {TOPIC_KEYS[finer].documentation}",
        validator,
        read_only=True,
        milliseconds=milliseconds,
        inert=TOPIC_KEYS[finer].inert,
    )


def _static(
    name: str,
    kind: ConfigType,
    default: str | None,
    documentation: str,
    validator: Validator | None = None,
    *,
    fallbacks: tuple[str, ...] = (),
    inert: bool = False,
    set_by: str = "",
) -> ConfigKey:
    """A key that is only read at start."""
    return ConfigKey(
        name,
        kind,
        default,
        documentation,
        validator,
        read_only=True,
        fallbacks=fallbacks,
        inert=inert,
        set_by=set_by,
    )


def _dynamic(
    name: str, kind: ConfigType, default: str, documentation: str, validator: Validator
) -> ConfigKey:
    """A key that can change at runtime, for the whole cluster or one broker."""
    return ConfigKey(name, kind, default, documentation, validator)


_NO_THREADS = (
    "Accepted for compatibility, no effect: a worker is one event loop; more of them come with "
    "--workers."
)

_LISTENING = (
    _static(
        "advertised.listeners",
        LIST,
        None,
        "The address of this broker that is advertised to clients.",
        ListOf(may_be_empty=False),
        fallbacks=("listeners",),
        set_by="--advertised-host or --advertised-listeners",
    ),
    _static(
        "broker.id",
        INT,
        "-1",
        "The number of this broker in Metadata, as older tools call node.id.",
        set_by="--workers",
    ),
    _static(
        "broker.rack",
        STRING,
        None,
        "Shown for compatibility, no effect: all workers run on one host.",
        inert=True,
    ),
    _static(
        "connections.max.idle.ms",
        LONG,
        "600000",
        "A connection that was idle for this long is closed.",
    ),
    _static(
        "fetch.max.bytes",
        INT,
        "57671680",
        "Most bytes of records in one Fetch response, whatever the client asks for. A first batch "
        "that is larger is still returned whole.",
        Range(1024),
    ),
    _static(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "What the names of listeners mean.",
        set_by="--listener-security-protocol-map",
    ),
    _static(
        "listeners",
        LIST,
        "PLAINTEXT://:9092",
        "Where this broker listens.",
        ListOf(may_be_empty=False),
        set_by="--host and --port, or --listeners,",
    ),
    _static(
        "node.id",
        INT,
        None,
        "The number of this broker in Metadata: the index of its worker.",
        Range(0),
        set_by="--workers",
    ),
    ConfigKey("num.io.threads", INT, "8", _NO_THREADS, Range(1), inert=True),
    ConfigKey("num.network.threads", INT, "3", _NO_THREADS, Range(1), inert=True),
    _static(
        "socket.request.max.bytes",
        INT,
        "104857600",
        "Largest request a client may send; the connection of a larger one is closed.",
        Range(1),
        set_by="--max-request-bytes",
    ),
)

_TOPICS = (
    _static(
        "auto.create.topics.enable",
        BOOLEAN,
        "true",
        "Whether Metadata for a topic that does not exist creates it, when the client allows that.",
    ),
    _static(
        "default.replication.factor",
        INT,
        "1",
        "Shown for compatibility, no effect: brokers keep one copy of a partition; further copies "
        "are replicas of the Redis behind them.",
        Range(1),
        inert=True,
    ),
    _static(
        "delete.topic.enable",
        BOOLEAN,
        "true",
        "Whether DeleteTopics is allowed.",
    ),
    ConfigKey(
        "moldau.replication.factor.check.enable",
        BOOLEAN,
        "false",
        "Whether CreateTopics refuses a replication factor above the number of brokers, as Kafka "
        "does. Otherwise any factor is accepted; brokers keep one copy of a partition either way.",
    ),
    _static(
        "num.partitions",
        INT,
        "1",
        "Partitions of a topic that is created without a number of partitions.",
        Range(1),
    ),
)

_LOG = (
    _fallback("log.flush.scheduler.interval.ms", LONG, MAX_LONG, 1, Range(0)),
    _fallback("log.retention.hours", INT, "168", HOUR_MS, _UNLIMITED_OR_POSITIVE),
    _fallback("log.retention.minutes", INT, None, MINUTE_MS, _UNLIMITED_OR_POSITIVE),
    _fallback("log.roll.hours", INT, "168", HOUR_MS, Range(1)),
    _fallback("log.roll.jitter.hours", INT, "0", HOUR_MS, Range(0)),
    _dynamic(
        "log.cleaner.backoff.ms",
        LONG,
        "15000",
        "How often compacted partitions are looked at: rounds of compaction begin at least this "
        "far apart.",
        Range(0),
    ),
    _static(
        "log.cleaner.enable",
        BOOLEAN,
        "true",
        "Whether topics with cleanup.policy=compact are compacted in the background.",
    ),
    _static(
        "log.dirs",
        LIST,
        None,
        "Where the embedded store keeps its data, or the address of an external Redis.",
        ListOf(may_be_empty=False),
        set_by="--data-dir and --redis",
    ),
    _static(
        "log.retention.check.interval.ms",
        LONG,
        "300000",
        "How often partitions are checked for records past their retention.",
        Range(1),
    ),
    _static(
        "remote.log.storage.system.enable",
        BOOLEAN,
        "false",
        "Whether topics may set remote.storage.enable. Brokers archive nothing themselves: turn it "
        "on only where an archiver copies the topics out of Redis.",
    ),
)

_GROUPS = (
    _static(
        "moldau.group.events.enable",
        BOOLEAN,
        "true",
        "Whether rebalances, members that come and go and rates of commits are written into the "
        "topic __moldau_group_events, for moldau pipeline report.",
    ),
    _static(
        "group.initial.rebalance.delay.ms",
        INT,
        "3000",
        "How long the first rebalance of an empty group waits for further members.",
        Range(0),
    ),
    _static(
        "group.max.session.timeout.ms",
        INT,
        "1800000",
        "Longest session timeout a member of a classic group may ask for.",
        Range(1),
    ),
    _static(
        "group.max.size",
        INT,
        MAX_INT,
        "Most members a classic group may have.",
        Range(1),
    ),
    _static(
        "group.min.session.timeout.ms",
        INT,
        "6000",
        "Shortest session timeout a member of a classic group may ask for.",
        Range(1),
    ),
    _static(
        "offset.metadata.max.bytes",
        INT,
        "4096",
        "Longest metadata text a committed offset may carry.",
        Range(0),
    ),
    _static(
        "offsets.retention.check.interval.ms",
        LONG,
        "600000",
        "How often committed offsets are checked for their retention.",
        Range(1),
    ),
    _static(
        "offsets.retention.minutes",
        INT,
        "10080",
        "How long the committed offsets of a group without members are kept.",
        Range(1),
    ),
    _static(
        "offsets.topic.num.partitions",
        INT,
        str(SLOTS),
        "Slots the groups are spread over, as over the partitions of Kafka's __consumer_offsets. "
        "Fixed: which worker owns a group follows from it.",
        Range(SLOTS, SLOTS),
    ),
)

_PRODUCERS = (
    _dynamic(
        "producer.id.expiration.ms",
        INT,
        "86400000",
        "How long a partition remembers the last batches of a producer that writes no more.",
        Range(1),
    ),
    _static(
        "transaction.max.timeout.ms",
        INT,
        "900000",
        "Longest transaction timeout a producer may ask for.",
        Range(1),
    ),
    _static(
        "transactional.id.expiration.ms",
        INT,
        "604800000",
        "How long a transactional id that is not used is remembered.",
        Range(1),
    ),
)

_TOPIC_DEFAULTS = tuple(
    _topic_default(key, key.synonym) for key in TOPIC_KEYS.values() if key.synonym is not None
)

BROKER_KEYS: Final = {
    key.name: key
    for key in sorted(
        (
            *_LISTENING,
            *_TOPICS,
            *_LOG,
            *_GROUPS,
            *CONSUMER_KEYS,
            *_PRODUCERS,
            *_TOPIC_DEFAULTS,
            *AUTHORIZATION_KEYS,
            *LIMIT_KEYS,
            *SSL_KEYS,
            *SASL_KEYS,
            *TELEMETRY_KEYS,
            *TOKEN_KEYS,
            *INERT_KEYS,
        ),
        key=lambda key: key.name,
    )
}
