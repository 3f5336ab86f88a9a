"""DescribeConfigs (key 32): every key of a topic, broker, group or client metrics subscription:
value, source, type, meaning; and the levels of a broker's loggers (KIP-412).

KIP-226: synonyms. KIP-569: types and documentation from v3.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, MoldauError
from moldau.broker.handlers.details import loggers
from moldau.broker.handlers.details.configs import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    check_access,
    fill_error,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.settings.kafka import (
    ConfigEntry,
    describe_broker,
    describe_client_metrics,
    describe_group,
    describe_topic,
)
from moldau.broker.topics.topics import check_name
from moldau.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


async def handle(
    broker: Broker, request: DescribeConfigsRequest, call: Call
) -> DescribeConfigsResponse:
    results = []
    for item in request.resources:
        result = DescribeConfigsResult(0, None, item.resource_type, item.resource_name)
        try:
            check_access(broker, call, Operation.DESCRIBE_CONFIGS, item)
            entries = await _entries(broker, item)
        except MoldauError as fault:
            fill_error(result, fault)
        else:
            result.configs = [_answer(entry, request) for entry in entries]
        results.append(result)
    return DescribeConfigsResponse(results=results)


async def _entries(broker: Broker, item: DescribeConfigsResource) -> list[ConfigEntry]:
    if item.resource_type == TOPIC:
        check_name(item.resource_name)
        # Read from the store: another worker may just have changed it.
        topic = await broker.topics.refresh(item.resource_name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return describe_topic(topic.record.configs, broker.config, item.configuration_keys)
    if item.resource_type == BROKER:
        if item.resource_name == "":
            config = await broker.config_of("")
            return describe_broker(config, item.configuration_keys, cluster_default=True)
        node = broker.node_named(item.resource_name)
        return describe_broker(await broker.config_of(node), item.configuration_keys)
    if item.resource_type == GROUP and item.resource_name:
        # Read from the store: another worker may just have changed it.
        own = (await broker.store.topics.group_configs()).get(item.resource_name, {})
        return describe_group(own, broker.config, item.configuration_keys)
    if item.resource_type == CLIENT_METRICS and item.resource_name and broker.telemetry is not None:
        own = (await broker.store.topics.client_metrics_configs()).get(item.resource_name, {})
        return describe_client_metrics(own, item.configuration_keys)
    if item.resource_type == BROKER_LOGGER:
        return loggers.describe(broker, item.resource_name, item.configuration_keys)
    if item.resource_type == CLIENT_METRICS and item.resource_name:
        return []  # they are not collected
    named = f"{item.resource_name!r} of type {item.resource_type}"
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no such resource: {named}")


def _answer(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    answer = DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )
    if request.include_synonyms:
        answer.synonyms = [
            DescribeConfigsSynonym(synonym.name, synonym.value, synonym.source)
            for synonym in entry.synonyms
        ]
    return answer
