"""The resources whose configuration can be described and altered, by Kafka's numbers.

Configuration is stored by resource as a map of keys to values. A change is a function from the
stored map to the new one; it is applied with compare-and-set, and repeated when another worker was
faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Protocol

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, MoldauError, code_for, message_for
from moldau.broker.handlers.details import authorization, loggers
from moldau.broker.security.resources import CLUSTER_NAME, Operation, ResourceType
from moldau.broker.server.call import Call
from moldau.broker.settings.kafka import (
    BrokerConfig,
    InvalidConfig,
    InvalidConfigRequest,
    validate_broker,
    validate_group,
)
from moldau.broker.store.topics import Change
from moldau.broker.telemetry.subscriptions import read_subscription
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

Configs = dict[str, str]
ConfigChange = Callable[[Configs], Configs]  # from the stored configuration to the new one


class Answer(Protocol):
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


class Resource(Protocol):
    resource_type: int
    resource_name: str


class OnceEach:
    """Refuses every resource that a request names more than once, as Kafka does."""

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
    """Alter the resource that `answer` is about, and write a failure into it. Loggers have no
    stored configuration: `of_loggers` alters them."""
    name = answer.resource_name
    try:
        check_access(broker, call, Operation.ALTER_CONFIGS, answer)
        if answer.resource_type == TOPIC:
            check_name(name)
            await broker.topics.set_configs(name, change, validate_only=validate_only)
        elif answer.resource_type == BROKER:
            await _alter_broker(broker, name, change, validate_only=validate_only)
        elif answer.resource_type == GROUP:
            await _alter_group(broker, name, change, validate_only=validate_only)
        elif answer.resource_type == CLIENT_METRICS:
            await _alter_client_metrics(broker, name, change, validate_only=validate_only)
        elif answer.resource_type == BROKER_LOGGER and of_loggers is not None:
            await loggers.alter(broker, name, of_loggers, validate_only=validate_only)
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


# --- stored configuration ---


async def _alter_group(
    broker: Broker, group_id: str, change: ConfigChange, *, validate_only: bool
) -> None:
    """The group need not exist."""
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a group has a name")
    store = broker.store.topics
    check = partial(validate_group, broker=broker.config)
    if await _alter_stored(
        group_id, store.group_configs, store.set_group_config, change, check, validate_only
    ):
        await broker.group_settings.load()
        await store.announce(Change("group", group_id))


async def _alter_client_metrics(
    broker: Broker, name: str, change: ConfigChange, *, validate_only: bool
) -> None:
    """A subscription to clients' metrics. It is deleted when its configuration becomes empty."""
    if broker.telemetry is None:
        text = "client metrics cannot be configured: moldau.telemetry.enable is false"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    store = broker.store.topics
    if await _alter_stored(
        name,
        store.client_metrics_configs,
        store.set_client_metrics_config,
        change,
        read_subscription,
        validate_only,
    ):
        await broker.telemetry.load()
        await store.announce(Change("client-metrics", name))


async def _alter_broker(
    broker: Broker, node: str, change: ConfigChange, *, validate_only: bool
) -> None:
    """`node`: the broker's id; "" alters the default of all brokers."""
    if node:
        broker.node_named(node)
    store = broker.store.topics
    while True:
        dynamic = await store.broker_configs()
        old = dynamic.get(node)
        before = BrokerConfig(broker.config.static, dynamic.get("", {}))
        new = _changed(old, change, partial(validate_broker, broker=before))
        if validate_only:
            return
        if await store.set_broker_config(node, old, new):
            break
    await broker.load_config()
    await store.announce(Change("config"))


async def _alter_stored(
    name: str,
    read: Callable[[], Awaitable[dict[str, Configs]]],
    compare_and_set: Callable[[str, Configs | None, Configs], Awaitable[bool]],
    change: ConfigChange,
    check: Callable[[Configs], Any],
    validate_only: bool,
) -> bool:
    """Returns whether something was written. Raises KafkaError."""
    while True:
        old = (await read()).get(name)
        new = _changed(old, change, check)
        if validate_only or (old is None and not new):
            return False
        if await compare_and_set(name, old, new):
            return True


def _changed(old: Configs | None, change: ConfigChange, check: Callable[[Configs], Any]) -> Configs:
    """Apply `change`, and check the result. Raises KafkaError."""
    try:
        new = change(dict(old or {}))
        check(new)
    except InvalidConfigRequest as refusal:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(refusal)) from None
    except InvalidConfig as refusal:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(refusal)) from None
    return new
