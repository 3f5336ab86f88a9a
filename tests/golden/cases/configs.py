"""Configurations: altered, described, listed."""

from __future__ import annotations

from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from moldau.broker.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.broker.wire.messages.list_config_resources import ListConfigResourcesRequest
from tests.golden.harness import Case, Step, Values
from tests.golden.steps import create

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2


def alter(*resources: AlterConfigsResource, validate_only: bool = False) -> Step:
    return Step(IncrementalAlterConfigsRequest(list(resources), validate_only))


def topic_set(name: str, *pairs: tuple[str, str]) -> AlterConfigsResource:
    return AlterConfigsResource(
        TOPIC, name, [AlterableConfig(key, SET, value) for key, value in pairs]
    )


def broker_set(seen: Values, *pairs: tuple[str, str]) -> IncrementalAlterConfigsRequest:
    configs = [AlterableConfig(key, SET, value) for key, value in pairs]
    return IncrementalAlterConfigsRequest(
        [AlterConfigsResource(BROKER, str(seen["node"]), configs)]
    )


INCREMENTAL_ALTER_CONFIGS = Case(
    [
        create("golden-ic-a", "golden-ic-b"),
        alter(
            topic_set("golden-ic-a", ("retention.ms", "1000")),
            topic_set("golden-ic-a", ("retention.ms", "2000")),
            topic_set("golden-ic-b", ("retention.ms", "3000")),
        ),
        alter(topic_set("golden-ic-a", ("retention.ms", "1000"), ("retention.ms", "2000"))),
        alter(topic_set("golden-ic-missing", ("retention.ms", "1000"))),
        alter(topic_set("bad name", ("retention.ms", "1000"))),
        alter(topic_set("golden-ic-a", ("no.such.key", "1"))),
        alter(topic_set("golden-ic-a", ("retention.ms", "soon"))),
        alter(
            AlterConfigsResource(
                TOPIC, "golden-ic-a", [AlterableConfig("cleanup.policy", APPEND, "compact")]
            )
        ),
        alter(
            AlterConfigsResource(
                TOPIC, "golden-ic-a", [AlterableConfig("retention.ms", APPEND, "1")]
            )
        ),
        alter(
            AlterConfigsResource(TOPIC, "golden-ic-a", [AlterableConfig("retention.ms", 9, "1")])
        ),
        alter(
            AlterConfigsResource(TOPIC, "golden-ic-a", [AlterableConfig("retention.ms", SET, None)])
        ),
        alter(AlterConfigsResource(99, "x", [])),
        alter(AlterConfigsResource(BROKER, "77", [AlterableConfig("log.retention.ms", SET, "1")])),
        alter(AlterConfigsResource(BROKER, "x", [AlterableConfig("log.retention.ms", SET, "1")])),
        Step(lambda seen: broker_set(seen, ("num.io.threads.no", "1"))),
        Step(lambda seen: broker_set(seen, ("node.id", "7"))),
        Step(lambda seen: broker_set(seen, ("broker.id", "7"))),
        Step(lambda seen: broker_set(seen, ("log.dirs", "/tmp/x"))),
        Step(lambda seen: broker_set(seen, ("auto.create.topics.enable", "false"))),
    ],
    differs={
        9: "INVALID_REQUEST; Kafka has no code for a null value",
        14: "an unknown key is INVALID_CONFIG; Kafka keeps keys for its plug-ins",
    },
)


def config_names(
    *resources: tuple[int, str], keys: list[str] | None = None, synonyms: bool = False
) -> Step:
    wanted = [DescribeConfigsResource(kind, name, keys) for kind, name in resources]
    return Step(DescribeConfigsRequest(wanted, include_synonyms=synonyms))


def group_set(name: str, key: str, value: str) -> Step:
    return alter(AlterConfigsResource(GROUP, name, [AlterableConfig(key, SET, value)]))


DESCRIBE_CONFIGS = Case(
    [
        create("golden-dc-a"),
        config_names((TOPIC, "bad name")),
        config_names((TOPIC, "")),
        config_names((TOPIC, "golden-dc-missing")),
        config_names((TOPIC, "golden-dc-a"), (TOPIC, "golden-dc-a"), keys=["retention.ms"]),
        config_names((BROKER, "77")),
        config_names((BROKER, "x")),
        config_names((GROUP, "golden-group")),
        config_names((GROUP, "")),
        config_names((CLIENT_METRICS, "golden-metrics")),
        config_names((CLIENT_METRICS, "")),
        config_names((99, "x")),
        Step(ListConfigResourcesRequest(resource_types=[CLIENT_METRICS])),
        Step(ListConfigResourcesRequest(resource_types=[GROUP])),
        Step(ListConfigResourcesRequest(resource_types=[99])),
        Step(ListConfigResourcesRequest(), 0),
    ],
    differs={9: "client metrics are not collected"},
    differs_in={7: ("read_only", "they belong to group protocols that are not served")},
)

DESCRIBE_GROUP_CONFIGS = Case(
    [
        config_names((GROUP, "golden-gc"), synonyms=True),
        config_names((GROUP, "golden-gc"), keys=["share.isolation.level", "nope"], synonyms=True),
        config_names((GROUP, "golden-gc"), keys=["nope"]),
        config_names((GROUP, ""), keys=["share.isolation.level"]),
        group_set("golden-gc", "consumer.session.timeout.ms", "50000"),
        group_set("golden-gc", "nope", "1"),
    ],
    differs_in={
        0: ("read_only", "some belong to group protocols that are not served"),
        1: ("read_only", "likewise"),
    },
)


def logger_set(*config: AlterableConfig) -> Step:
    return Step(
        lambda seen: IncrementalAlterConfigsRequest(
            [AlterConfigsResource(BROKER_LOGGER, str(seen["node"]), list(config))]
        )
    )


BROKER_LOGGERS = Case(
    [
        config_names((BROKER_LOGGER, "77")),
        config_names((BROKER_LOGGER, "x")),
        config_names((BROKER_LOGGER, "")),
        logger_set(AlterableConfig("root", SET, "INFO")),
        logger_set(AlterableConfig("root", SET, "INFO"), AlterableConfig("nope", SET, "INFO")),
        logger_set(AlterableConfig("root", SET, "LOUD")),
        logger_set(AlterableConfig("root", SET, "info")),
        logger_set(AlterableConfig("root", SET, "OFF")),
        logger_set(AlterableConfig("root", SET, None)),
        logger_set(AlterableConfig("root", DELETE, None)),
        logger_set(AlterableConfig("root", APPEND, "INFO")),
        logger_set(AlterableConfig("root", SET, "INFO"), AlterableConfig("root", SET, "WARN")),
        logger_set(AlterableConfig("nope", DELETE, None)),
        logger_set(),
        alter(AlterConfigsResource(BROKER_LOGGER, "77", [AlterableConfig("root", SET, "INFO")])),
        alter(AlterConfigsResource(BROKER_LOGGER, "x", [AlterableConfig("root", SET, "INFO")])),
    ]
)
