"""IncrementalAlterConfigs (key 44, KIP-339): set, delete, append, subtract."""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.handlers.details.configs import (
    BROKER,
    CLIENT_METRICS,
    GROUP,
    ConfigChange,
    OnceEach,
    alter,
)
from moldau.broker.server.call import Call
from moldau.broker.settings.kafka import (
    BROKER_KEYS,
    CLIENT_METRICS_KEYS,
    GROUP_KEYS,
    TOPIC_KEYS,
    apply_incremental,
)
from moldau.broker.wire.messages.alter_configs import AlterConfigsResourceResponse
from moldau.broker.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_KEYS = {BROKER: BROKER_KEYS, CLIENT_METRICS: CLIENT_METRICS_KEYS, GROUP: GROUP_KEYS}


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, call: Call
) -> IncrementalAlterConfigsResponse:
    answers = []
    once_each = OnceEach(request.resources)
    for item in request.resources:
        answer = AlterConfigsResourceResponse(0, None, item.resource_type, item.resource_name)
        answers.append(answer)
        if not once_each.refuses(answer):
            change = _change(broker, item)
            keys = {config.name for config in item.configs}
            await alter(
                broker,
                call,
                answer,
                change,
                keys,
                validate_only=request.validate_only,
                of_loggers=item.configs,
            )
    await broker.changes_applied()
    return IncrementalAlterConfigsResponse(responses=answers)


def _change(broker: Broker, item: AlterConfigsResource) -> ConfigChange:
    operations = [(config.name, config.config_operation, config.value) for config in item.configs]
    keys = _KEYS.get(item.resource_type, TOPIC_KEYS)
    config = broker.config
    return lambda current: apply_incremental(current, operations, keys=keys, broker=config)
