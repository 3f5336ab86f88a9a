"""AlterConfigs (key 33, KIP-133): replace all of a resource's configuration at once."""

from __future__ import annotations

from broker.errors import ErrorCode, KafkaError, MoldauError, code_for
from broker.handlers.context import Broker
from broker.handlers.describe_configs import BROKER, TOPIC
from broker.server.connection import Call
from broker.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(broker: Broker, request: AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    results = []
    for item in request.resources:
        answer = AlterConfigsResourceResponse(0, None, item.resource_type, item.resource_name)
        try:
            await _replace(broker, item, request.validate_only)
        except MoldauError as fault:
            answer.error_code, answer.error_message = code_for(fault), str(fault)
        results.append(answer)
    return AlterConfigsResponse(responses=results)


async def _replace(broker: Broker, item: AlterConfigsResource, validate_only: bool) -> None:
    wanted = {config.name: config.value for config in item.configs}
    if len(wanted) != len(item.configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a key stands twice in the request")
    nulls = [name for name, value in wanted.items() if value is None]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"null values: {', '.join(nulls)}")
    chosen = {name: value for name, value in wanted.items() if value is not None}
    if item.resource_type == TOPIC:
        await broker.topics.set_configs(
            item.resource_name, lambda _: chosen, validate_only=validate_only
        )
    elif item.resource_type == BROKER:
        await broker.alter_broker_config(
            item.resource_name, lambda _: chosen, validate_only=validate_only
        )
    else:
        text = f"resource type {item.resource_type}: only topics and brokers"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
