"""The resources whose configuration can be described and altered, by Kafka's numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from moldau.broker.errors import ErrorCode, KafkaError, MoldauError, code_for, message_for
from moldau.broker.handlers import authorization, broker_loggers
from moldau.broker.handlers.context import Broker
from moldau.broker.handlers.named_configs import ConfigChange
from moldau.broker.security.resources import CLUSTER_NAME, Operation, ResourceType
from moldau.broker.server.call import Call
from moldau.broker.topics.topics import check_name
from moldau.broker.wire.messages.incremental_alter_configs import AlterableConfig

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
_KINDS = {
    TOPIC: "topic",
    BROKER: "broker",
    BROKER_LOGGER: "broker-logger",
    CLIENT_METRICS: "client-metrics",
    GROUP: "group",
}


class Answer(Protocol):
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


class Resource(Protocol):
    resource_type: int
    resource_name: str


class OnceEach:
    """Refuses the resources that a request names more than once, all of them, as Kafka does."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._named = Counter((each.resource_type, each.resource_name) for each in resources)

    def refuses(self, answer: Answer) -> bool:
        if self._named[answer.resource_type, answer.resource_name] == 1:
            return False
        text = f"{answer.resource_name!r} is named more than once in the request"
        fill_error(answer, KafkaError(ErrorCode.INVALID_REQUEST, text))
        return True


def check_access(broker: Broker, call: Call, operation: Operation, item: Resource) -> None:
    """Raises KafkaError unless the client may do this with the resource's configuration."""
    resource, name = ResourceType.CLUSTER, CLUSTER_NAME
    if item.resource_type == TOPIC:
        resource, name = ResourceType.TOPIC, item.resource_name
    elif item.resource_type == GROUP:
        resource, name = ResourceType.GROUP, item.resource_name
    authorization.check_allowed(broker, call, operation, resource, name)


async def alter(
    broker: Broker,
    call: Call,
    answer: Answer,
    change: ConfigChange,
    keys: Iterable[str],
    *,
    validate_only: bool,
    of_loggers: list[AlterableConfig] | None = None,
) -> None:
    """Alter the resource that `answer` is about, and fill in what went wrong. Loggers, which have
    no stored configuration to change, are altered by `of_loggers`."""
    name = answer.resource_name
    try:
        check_access(broker, call, Operation.ALTER_CONFIGS, answer)
        if answer.resource_type == TOPIC:
            check_name(name)
            await broker.topics.set_configs(name, change, validate_only=validate_only)
        elif answer.resource_type == BROKER:
            await broker.alter_broker_config(name, change, validate_only=validate_only)
        elif answer.resource_type == GROUP:
            await broker.alter_group_config(name, change, validate_only=validate_only)
        elif answer.resource_type == CLIENT_METRICS:
            await broker.alter_client_metrics_config(name, change, validate_only=validate_only)
        elif answer.resource_type == BROKER_LOGGER and of_loggers is not None:
            await broker_loggers.alter(broker, name, of_loggers, validate_only=validate_only)
        else:
            text = f"resource type {answer.resource_type} cannot be altered"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    except MoldauError as fault:
        fill_error(answer, fault)
    else:
        if not validate_only:
            kind = _KINDS[answer.resource_type]
            who = call.identity  # values may be secrets
            broker.audit.changed(who, "config", "altered", name, resource=kind, keys=sorted(keys))


def fill_error(answer: Answer, fault: MoldauError) -> None:
    answer.error_code, answer.error_message = code_for(fault), message_for(fault)
