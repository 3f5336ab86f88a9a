"""The resources whose configuration can be described and altered, by Kafka's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.errors import ErrorCode, KafkaError, MoldauError, code_for
from broker.handlers.context import Broker

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8

# From what is set for a resource to what shall be.
Change = Callable[[dict[str, str]], dict[str, str]]


class Answer(Protocol):
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


async def alter(broker: Broker, answer: Answer, change: Change, *, validate_only: bool) -> None:
    """Alter the resource that `answer` is about, and fill in what went wrong."""
    name = answer.resource_name
    try:
        if answer.resource_type == TOPIC:
            await broker.topics.set_configs(name, change, validate_only=validate_only)
        elif answer.resource_type == BROKER:
            await broker.alter_broker_config(name, change, validate_only=validate_only)
        else:
            text = f"resource type {answer.resource_type}: only topics and brokers"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    except MoldauError as fault:
        fill_error(answer, fault)


def fill_error(answer: Answer, fault: MoldauError) -> None:
    answer.error_code, answer.error_message = code_for(fault), str(fault)
