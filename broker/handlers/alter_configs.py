"""AlterConfigs (key 33, KIP-133): replace all of a resource's configuration at once."""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.handlers.details.configs import ConfigChange, OnceEach, alter, fill_error
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(broker: Broker, request: AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    answers = []
    once_each = OnceEach(request.resources)
    for item in request.resources:
        answer = AlterConfigsResourceResponse(0, None, item.resource_type, item.resource_name)
        answers.append(answer)
        if once_each.refuses(answer):
            continue
        try:
            change = _replacement(item)
        except KafkaError as refusal:
            fill_error(answer, refusal)
        else:
            keys = {config.name for config in item.configs}
            await alter(broker, call, answer, change, keys, validate_only=request.validate_only)
    await broker.changes_applied()
    return AlterConfigsResponse(responses=answers)


def _replacement(item: AlterConfigsResource) -> ConfigChange:
    wanted = {config.name: config.value for config in item.configs}
    if len(wanted) != len(item.configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a key stands twice in the request")
    nulls = [name for name, value in wanted.items() if value is None]
    if nulls:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for {', '.join(nulls)}"
        )
    chosen = {name: value for name, value in wanted.items() if value is not None}
    return lambda _: chosen
