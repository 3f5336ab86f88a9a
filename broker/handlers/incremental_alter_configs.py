"""IncrementalAlterConfigs (key 44, KIP-339): set, delete, append, subtract."""

from __future__ import annotations

from broker.errors import ErrorCode, KafkaError, MoldauError, code_for
from broker.handlers.context import Broker
from broker.handlers.describe_configs import BROKER, TOPIC
from broker.server.connection import Call
from broker.settings.kafka import BROKER_KEYS, apply_incremental
from broker.wire.messages.alter_configs import AlterConfigsResourceResponse
from broker.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, call: Call
) -> IncrementalAlterConfigsResponse:
    results = []
    for item in request.resources:
        answer = AlterConfigsResourceResponse(0, None, item.resource_type, item.resource_name)
        try:
            await _alter(broker, item, request.validate_only)
        except MoldauError as fault:
            answer.error_code, answer.error_message = code_for(fault), str(fault)
        results.append(answer)
    return IncrementalAlterConfigsResponse(responses=results)


async def _alter(broker: Broker, item: AlterConfigsResource, validate_only: bool) -> None:
    operations = [(config.name, config.config_operation, config.value) for config in item.configs]
    if item.resource_type == TOPIC:
        await broker.topics.set_configs(
            item.resource_name,
            lambda current: apply_incremental(current, operations, broker=broker.config),
            validate_only=validate_only,
        )
    elif item.resource_type == BROKER:
        await broker.alter_broker_config(
            item.resource_name,
            lambda current: apply_incremental(
                current, operations, keys=BROKER_KEYS, broker=broker.config
            ),
            validate_only=validate_only,
        )
    else:
        text = f"resource type {item.resource_type}: only topics and brokers"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
