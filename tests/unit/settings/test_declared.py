"""The declarations agree with Kafka 4.3 and with themselves."""

import re

import pytest

from moldau.broker.settings.kafka import (
    BROKER_KEYS,
    TOPIC_KEYS,
    ConfigOperation,
    ConfigSource,
    ConfigType,
    InvalidConfig,
    validate_broker,
    validate_static,
)
from moldau.broker.settings.kafka.inert_keys import INERT_KEYS

MAX_LONG = str(2**63 - 1)
MAX_INT = str(2**31 - 1)

# name: (type, default, broker key), as Kafka 4.3 has them.
KAFKA_TOPIC_KEYS = {
    "cleanup.policy": ("LIST", "delete", "log.cleanup.policy"),
    "compression.gzip.level": ("INT", "-1", "compression.gzip.level"),
    "compression.lz4.level": ("INT", "9", "compression.lz4.level"),
    "compression.type": ("STRING", "producer", "compression.type"),
    "compression.zstd.level": ("INT", "3", "compression.zstd.level"),
    "delete.retention.ms": ("LONG", "86400000", "log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": ("LONG", "60000", "log.segment.delete.delay.ms"),
    "flush.messages": ("LONG", MAX_LONG, "log.flush.interval.messages"),
    "flush.ms": ("LONG", MAX_LONG, "log.flush.interval.ms"),
    "follower.replication.throttled.replicas": ("LIST", "", None),
    "index.interval.bytes": ("INT", "4096", "log.index.interval.bytes"),
    "leader.replication.throttled.replicas": ("LIST", "", None),
    "local.retention.bytes": ("LONG", "-2", "log.local.retention.bytes"),
    "local.retention.ms": ("LONG", "-2", "log.local.retention.ms"),
    "max.compaction.lag.ms": ("LONG", MAX_LONG, "log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": ("INT", "1048588", "message.max.bytes"),
    "message.timestamp.after.max.ms": ("LONG", "3600000", "log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": ("LONG", MAX_LONG, "log.message.timestamp.before.max.ms"),
    "message.timestamp.type": ("STRING", "CreateTime", "log.message.timestamp.type"),
    "min.cleanable.dirty.ratio": ("DOUBLE", "0.5", "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": ("LONG", "0", "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": ("INT", "1", "min.insync.replicas"),
    "preallocate": ("BOOLEAN", "false", "log.preallocate"),
    "remote.log.copy.disable": ("BOOLEAN", "false", None),
    "remote.log.delete.on.disable": ("BOOLEAN", "false", None),
    "remote.storage.enable": ("BOOLEAN", "false", None),
    "retention.bytes": ("LONG", "-1", "log.retention.bytes"),
    "retention.ms": ("LONG", "604800000", "log.retention.ms"),
    "segment.bytes": ("INT", "1073741824", "log.segment.bytes"),
    "segment.index.bytes": ("INT", "10485760", "log.index.size.max.bytes"),
    "segment.jitter.ms": ("LONG", "0", "log.roll.jitter.ms"),
    "segment.ms": ("LONG", "604800000", "log.roll.ms"),
    "unclean.leader.election.enable": ("BOOLEAN", "false", "unclean.leader.election.enable"),
}

# name: (type, default, may change while running), as Kafka 4.3 has them. Dynamic in Kafka and
# static here are listeners, num.io.threads and num.network.threads: options of serve decide them;
# and certificates, whose files are looked at instead. Their default type is JKS in Kafka.
KAFKA_BROKER_KEYS = {
    "advertised.listeners": ("LIST", None, False),
    "authorizer.class.name": ("STRING", "", False),
    "auto.create.topics.enable": ("BOOLEAN", "true", False),
    "broker.id": ("INT", "-1", False),
    "broker.rack": ("STRING", None, False),
    "compression.gzip.level": ("INT", "-1", True),
    "compression.lz4.level": ("INT", "9", True),
    "compression.type": ("STRING", "producer", True),
    "compression.zstd.level": ("INT", "3", True),
    "connections.max.idle.ms": ("LONG", "600000", False),
    "controller.quota.window.num": ("INT", "11", False),
    "controller.quota.window.size.seconds": ("INT", "1", False),
    "default.replication.factor": ("INT", "1", False),
    "delegation.token.expiry.check.interval.ms": ("LONG", "3600000", False),
    "delegation.token.expiry.time.ms": ("LONG", "86400000", False),
    "delegation.token.max.lifetime.ms": ("LONG", "604800000", False),
    "delegation.token.secret.key": ("PASSWORD", None, False),
    "delete.topic.enable": ("BOOLEAN", "true", False),
    "fetch.max.bytes": ("INT", "57671680", False),
    "group.initial.rebalance.delay.ms": ("INT", "3000", False),
    "group.max.session.timeout.ms": ("INT", "1800000", False),
    "group.consumer.assignment.interval.ms": ("INT", "1000", True),
    "group.consumer.assignors": ("LIST", "uniform,range", False),
    "group.consumer.heartbeat.interval.ms": ("INT", "5000", False),
    "group.consumer.max.assignment.interval.ms": ("INT", "15000", False),
    "group.consumer.max.heartbeat.interval.ms": ("INT", "15000", False),
    "group.consumer.max.session.timeout.ms": ("INT", "60000", False),
    "group.consumer.max.size": ("INT", MAX_INT, False),
    "group.consumer.migration.policy": ("STRING", "bidirectional", False),
    "group.consumer.min.assignment.interval.ms": ("INT", "0", False),
    "group.consumer.min.heartbeat.interval.ms": ("INT", "5000", False),
    "group.consumer.min.session.timeout.ms": ("INT", "45000", False),
    "group.consumer.session.timeout.ms": ("INT", "45000", False),
    "group.coordinator.rebalance.protocols": ("LIST", "classic,consumer", False),
    "group.max.size": ("INT", MAX_INT, False),
    "group.min.session.timeout.ms": ("INT", "6000", False),
    "listener.security.protocol.map": (
        "STRING",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        False,
    ),
    "listeners": ("LIST", "PLAINTEXT://:9092", False),
    "log.cleaner.backoff.ms": ("LONG", "15000", True),
    "log.cleaner.delete.retention.ms": ("LONG", "86400000", True),
    "log.cleaner.enable": ("BOOLEAN", "true", False),
    "log.cleaner.max.compaction.lag.ms": ("LONG", MAX_LONG, True),
    "log.cleaner.min.cleanable.ratio": ("DOUBLE", "0.5", True),
    "log.cleaner.min.compaction.lag.ms": ("LONG", "0", True),
    "log.cleanup.policy": ("LIST", "delete", True),
    "log.dirs": ("LIST", None, False),
    "log.flush.interval.messages": ("LONG", MAX_LONG, True),
    "log.flush.interval.ms": ("LONG", None, True),
    "log.flush.scheduler.interval.ms": ("LONG", MAX_LONG, False),
    "log.index.interval.bytes": ("INT", "4096", True),
    "log.index.size.max.bytes": ("INT", "10485760", True),
    "log.local.retention.bytes": ("LONG", "-2", True),
    "log.local.retention.ms": ("LONG", "-2", True),
    "log.message.timestamp.after.max.ms": ("LONG", "3600000", True),
    "log.message.timestamp.before.max.ms": ("LONG", MAX_LONG, True),
    "log.message.timestamp.type": ("STRING", "CreateTime", True),
    "log.preallocate": ("BOOLEAN", "false", True),
    "log.retention.bytes": ("LONG", "-1", True),
    "log.retention.check.interval.ms": ("LONG", "300000", False),
    "log.retention.hours": ("INT", "168", False),
    "log.retention.minutes": ("INT", None, False),
    "log.retention.ms": ("LONG", None, True),
    "log.roll.hours": ("INT", "168", False),
    "log.roll.jitter.hours": ("INT", "0", False),
    "log.roll.jitter.ms": ("LONG", None, True),
    "log.roll.ms": ("LONG", None, True),
    "log.segment.bytes": ("INT", "1073741824", True),
    "log.segment.delete.delay.ms": ("LONG", "60000", True),
    "max.connection.creation.rate": ("INT", MAX_INT, True),
    "max.connections": ("INT", MAX_INT, True),
    "max.connections.per.ip": ("INT", MAX_INT, True),
    "max.connections.per.ip.overrides": ("STRING", "", True),
    "message.max.bytes": ("INT", "1048588", True),
    "min.insync.replicas": ("INT", "1", True),
    "node.id": ("INT", None, False),
    "num.io.threads": ("INT", "8", True),
    "num.network.threads": ("INT", "3", True),
    "num.partitions": ("INT", "1", False),
    "offset.metadata.max.bytes": ("INT", "4096", False),
    "offsets.retention.check.interval.ms": ("LONG", "600000", False),
    "offsets.retention.minutes": ("INT", "10080", False),
    "offsets.topic.num.partitions": ("INT", "50", False),
    "producer.id.expiration.ms": ("INT", "86400000", True),
    "quota.window.num": ("INT", "11", False),
    "quota.window.size.seconds": ("INT", "1", False),
    "remote.log.storage.system.enable": ("BOOLEAN", "false", False),
    "socket.request.max.bytes": ("INT", "104857600", False),
    "sasl.enabled.mechanisms": ("LIST", "SCRAM-SHA-256,SCRAM-SHA-512", False),
    "sasl.server.max.receive.size": ("INT", "524288", False),
    "connections.max.reauth.ms": ("LONG", "0", False),
    "connection.failed.authentication.delay.ms": ("INT", "100", False),
    "sasl.oauthbearer.jwks.endpoint.url": ("STRING", None, False),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": ("LONG", "3600000", False),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": ("LONG", "100", False),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": ("LONG", "10000", False),
    "sasl.oauthbearer.expected.audience": ("LIST", "", False),
    "sasl.oauthbearer.expected.issuer": ("STRING", None, False),
    "sasl.oauthbearer.clock.skew.seconds": ("INT", "30", False),
    "sasl.oauthbearer.sub.claim.name": ("STRING", "sub", False),
    "sasl.oauthbearer.scope.claim.name": ("STRING", "scope", False),
    "ssl.cipher.suites": ("LIST", "", False),
    "ssl.client.auth": ("STRING", "none", False),
    "ssl.enabled.protocols": ("LIST", "TLSv1.2,TLSv1.3", False),
    "ssl.key.password": ("PASSWORD", None, False),
    "ssl.keystore.certificate.chain": ("PASSWORD", None, False),
    "ssl.keystore.key": ("PASSWORD", None, False),
    "ssl.keystore.location": ("STRING", None, False),
    "ssl.keystore.type": ("STRING", "PEM", False),
    "ssl.principal.mapping.rules": ("STRING", "DEFAULT", False),
    "ssl.truststore.certificates": ("PASSWORD", None, False),
    "ssl.truststore.location": ("STRING", None, False),
    "ssl.truststore.type": ("STRING", "PEM", False),
    "transaction.max.timeout.ms": ("INT", "900000", False),
    "transactional.id.expiration.ms": ("INT", "604800000", False),
    "telemetry.max.bytes": ("INT", "1048576", False),
    "unclean.leader.election.enable": ("BOOLEAN", "false", True),
}

EVERY_KEY = [*TOPIC_KEYS.values(), *BROKER_KEYS.values()]


def test_topic_keys_are_kafkas_and_ours() -> None:
    declared = {key.name: (key.type.name, key.default, key.synonym) for key in TOPIC_KEYS.values()}
    unpacked = ("INT", "67108864", "moldau.batch.unpacked.max.bytes")
    assert declared.pop("moldau.batch.unpacked.max.bytes") == unpacked
    validation = ("STRING", "full", "moldau.batch.validation")
    assert declared.pop("moldau.batch.validation") == validation
    assert declared.pop("moldau.storage") == ("STRING", "log", None)
    assert declared.pop("moldau.native.key") == ("STRING", "", None)
    assert declared.pop("moldau.native.sequence.bits") == ("INT", "10", None)
    assert declared.pop("moldau.native.value") == ("STRING", "", None)
    assert declared.pop("moldau.mirror.source") == ("STRING", "", None)
    assert declared == KAFKA_TOPIC_KEYS


def test_broker_keys_are_kafkas_and_ours() -> None:
    declared = {
        key.name: (key.type.name, key.default, not key.read_only) for key in BROKER_KEYS.values()
    }
    assert declared.pop("moldau.batch.validation") == ("STRING", "full", True)
    checks = declared.pop("moldau.replication.factor.check.enable")
    assert checks == ("BOOLEAN", "false", True)
    assert declared.pop("moldau.batch.unpacked.max.bytes") == ("INT", "67108864", True)
    assert declared.pop("moldau.group.events.enable") == ("BOOLEAN", "true", False)
    assert declared.pop("moldau.telemetry.enable") == ("BOOLEAN", "false", False)
    assert declared.pop("moldau.audit.enable") == ("STRING", "auto", False)
    # Kafka has it too, but does not show it.
    assert declared.pop("group.consumer.regex.refresh.interval.ms") == ("INT", "600000", False)
    # Of Kafka's StandardAuthorizer, which declares no keys.
    assert declared.pop("super.users") == ("STRING", "", False)
    assert declared.pop("allow.everyone.if.no.acl.found") == ("BOOLEAN", "false", False)
    assert declared.pop("moldau.delegation.tokens.per.owner") == ("INT", "10000", False)
    assert declared.pop("moldau.ssl.reload.interval.ms") == ("LONG", "10000", False)
    for key in INERT_KEYS:
        declared.pop(key.name)
    assert declared == KAFKA_BROKER_KEYS


# Dynamic in Kafka, and read-only here: what they belong to is not served, or is set at start only.
# Certificates are read again when their files change.
NOT_DYNAMIC_HERE = {
    "config.providers",
    "cordoned.log.dirs",
    "listener.security.protocol.map",
    "listeners",
    "metric.reporters",
    "principal.builder.class",
    "transaction.partition.verification.enable",
}
PREFIXES_NOT_DYNAMIC_HERE = (
    "follower.fetch.last.tiered.",
    "group.share.",
    "group.streams.",
    "remote.",
    "sasl.",
    "share.",
    "ssl.",
)
# What DescribeConfigs of Kafka 4.3.0 shows as not read-only, without what the broker takes for its
# topics' defaults.
KAFKA_DYNAMIC_KEYS = """
background.threads config.providers cordoned.log.dirs follower.fetch.last.tiered.offset.enable
group.consumer.assignment.interval.ms group.coordinator.cached.buffer.max.bytes
group.share.assignment.interval.ms group.streams.assignment.interval.ms
listener.security.protocol.map listeners log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size
log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second
log.cleaner.threads max.connection.creation.rate max.connections max.connections.per.ip
max.connections.per.ip.overrides metric.reporters num.io.threads num.network.threads
num.recovery.threads.per.data.dir num.replica.fetchers principal.builder.class
producer.id.expiration.ms remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
remote.log.index.file.cache.total.size.bytes remote.log.manager.copier.thread.pool.size
remote.log.manager.copy.max.bytes.per.second remote.log.manager.expiration.thread.pool.size
remote.log.manager.fetch.max.bytes.per.second remote.log.manager.follower.thread.pool.size
remote.log.reader.threads sasl.enabled.mechanisms sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules
sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.mechanism.inter.broker.protocol
share.coordinator.cached.buffer.max.bytes ssl.cipher.suites ssl.client.auth ssl.enabled.protocols
ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password
ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location
ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
ssl.truststore.password ssl.truststore.type transaction.partition.verification.enable
"""


def test_what_is_dynamic_in_kafka_can_be_set_unless_it_belongs_to_what_is_not_served() -> None:
    of_topics = {key.synonym for key in TOPIC_KEYS.values()}
    dynamic = {
        name for name, key in BROKER_KEYS.items() if not key.read_only and name not in of_topics
    }
    refused = {
        name
        for name in KAFKA_DYNAMIC_KEYS.split()
        if name in NOT_DYNAMIC_HERE or name.startswith(PREFIXES_NOT_DYNAMIC_HERE)
    }
    dynamic -= {"moldau.replication.factor.check.enable"}
    assert dynamic == set(KAFKA_DYNAMIC_KEYS.split()) - refused


def test_keys_that_only_tune_kafka_are_checked_as_there() -> None:
    for name, value in {
        "log.cleaner.threads": "2",
        "log.cleaner.io.max.bytes.per.second": "1048576.0",
        "num.io.threads": "16",
        "group.coordinator.cached.buffer.max.bytes": "524288",
    }.items():
        validate_broker({name: value})
    for name, value in {
        "log.cleaner.threads": "0",
        "num.io.threads": "many",
        "group.coordinator.cached.buffer.max.bytes": "1",
        "group.consumer.assignment.interval.ms": "15001",  # above its maximum
    }.items():
        with pytest.raises(InvalidConfig, match=re.escape(name.removeprefix("group."))):
            validate_broker({name: value})


def test_every_other_broker_key_of_kafka_is_shown() -> None:
    assert len(INERT_KEYS) == len({key.name for key in INERT_KEYS})
    assert len(INERT_KEYS) + len(KAFKA_BROKER_KEYS) == 339  # all that Kafka 4.3 has
    assert not {key.name for key in INERT_KEYS} & set(KAFKA_BROKER_KEYS)
    assert all(key.inert for key in INERT_KEYS)
    assert BROKER_KEYS["log.cleaner.threads"].default == "1"


def test_a_default_is_valid_and_as_kafka_prints_it() -> None:
    for key in EVERY_KEY:
        if key.default is not None:
            assert key.canonical(key.default) == key.default, key.name


def test_documentation_is_text_and_says_when_a_key_has_no_effect() -> None:
    for key in EVERY_KEY:
        assert key.documentation.strip() == key.documentation, key.name
        assert len(key.documentation) > 20, key.name
        assert key.documentation.endswith("."), key.name
        assert ("no effect" in key.documentation) == key.inert, key.name


def test_passwords_are_sensitive() -> None:
    for key in EVERY_KEY:
        assert key.sensitive == (key.type is ConfigType.PASSWORD), key.name


def test_a_topic_keys_broker_key_exists_and_gives_it_the_same_default() -> None:
    for key in TOPIC_KEYS.values():
        if key.synonym is None:
            continue
        broker_key = BROKER_KEYS[key.synonym]
        assert broker_key.type is key.type
        assert not broker_key.read_only
        assert broker_key.default == key.default or broker_key.fallbacks


def test_fallbacks_exist_and_end_in_a_default_or_in_what_the_process_sets() -> None:
    for key in BROKER_KEYS.values():
        last = [key, *(BROKER_KEYS[name] for name in key.fallbacks)][-1]
        assert (
            last.default is not None
            or last.set_by
            or last.inert
            or last.name
            in {
                "broker.rack",
                "delegation.token.secret.key",
                "log.retention.minutes",
            }
            or last.name.startswith(("ssl.", "sasl.oauthbearer."))
        )


def test_keys_are_listed_in_order() -> None:
    assert list(TOPIC_KEYS) == sorted(TOPIC_KEYS)
    assert list(BROKER_KEYS) == sorted(BROKER_KEYS)


@pytest.mark.parametrize("name", [key.name for key in BROKER_KEYS.values() if key.set_by])
def test_what_options_of_serve_decide_cannot_be_set_otherwise(name: str) -> None:
    default = BROKER_KEYS[name].default or "1"
    with pytest.raises(InvalidConfig, match=rf"{name} cannot be set: it is decided by --"):
        validate_static({name: default})


# kafka-python reads its schemas through a deprecated function, when it is imported.
@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")
def test_codes_are_what_clients_expect() -> None:
    from kafka import admin

    types = {kind.name: kind.value for kind in admin.ConfigType}
    assert {kind.name: kind.value for kind in ConfigType}.items() <= types.items()
    sources = {source.name: source.value for source in admin.ConfigSourceType}
    assert {source.name: source.value for source in ConfigSource}.items() <= sources.items()
    operations = {operation.name: operation.value for operation in admin.AlterConfigOp}
    assert {operation.name: operation.value for operation in ConfigOperation} == operations
