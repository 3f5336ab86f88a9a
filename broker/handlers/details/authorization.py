"""Checks whether a client may do what it requests, and lists what it may do (KIP-430).

Without an authorizer a check costs one comparison. A denied request is audited; a resource that is
merely left out of a list is not.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.security.resources import CLUSTER_NAME, Operation, ResourceType
from moldau.broker.server.call import Call

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
DELEGATION_TOKEN, USER = ResourceType.DELEGATION_TOKEN, ResourceType.USER

TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TRANSACTIONAL_ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

TOPIC_DENIED_TEXT = "Topic authorization failed."
GROUP_DENIED_TEXT = "Group authorization failed."
CLUSTER_DENIED_TEXT = "Cluster authorization failed."
TRANSACTIONAL_ID_DENIED_TEXT = "Transactional Id authorization failed."
_DENIALS = {
    TOPIC: (TOPIC_DENIED, TOPIC_DENIED_TEXT),
    GROUP: (GROUP_DENIED, GROUP_DENIED_TEXT),
    CLUSTER: (CLUSTER_DENIED, CLUSTER_DENIED_TEXT),
    TRANSACTIONAL_ID: (TRANSACTIONAL_ID_DENIED, TRANSACTIONAL_ID_DENIED_TEXT),
}

NOT_REQUESTED = -(1 << 31)
# The operations that a resource has.
_OPERATIONS = {
    TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
_ALL_OPERATIONS = {
    resource: sum(1 << operation for operation in operations)
    for resource, operations in _OPERATIONS.items()
}


def is_denied(
    broker: Broker, call: Call, operation: Operation, resource: ResourceType, name: str
) -> bool:
    authorizer = broker.authorizer
    if not authorizer.is_enabled or authorizer.allows(call.identity, operation, resource, name):
        return False
    log_denial(broker, call, operation, resource, name)
    return True


def check_allowed(
    broker: Broker, call: Call, operation: Operation, resource: ResourceType, name: str
) -> None:
    """Raises KafkaError."""
    if broker.authorizer.is_enabled and is_denied(broker, call, operation, resource, name):
        raise denial(resource)


def check_foreign_stream(broker: Broker, call: Call, operation: Operation, topic: str) -> None:
    """Only super users and the operator may create a topic over a stream that they name: it reaches
    keys that are not Moldau's. Raises KafkaError."""
    authorizer = broker.authorizer
    if not authorizer.is_enabled or authorizer.is_super_user(call.identity):
        return
    log_denial(broker, call, operation, TOPIC, topic)
    text = "streams outside of Moldau (moldau.native.key) are for super users only"
    raise KafkaError(TOPIC_DENIED, text)


def denial(resource: ResourceType) -> KafkaError:
    return KafkaError(*_DENIALS[resource])


def is_cluster_denied(broker: Broker, call: Call, operation: Operation) -> bool:
    return broker.authorizer.is_enabled and is_denied(
        broker, call, operation, CLUSTER, CLUSTER_NAME
    )


def is_hidden(
    broker: Broker, call: Call, operation: Operation, resource: ResourceType, name: str
) -> bool:
    """Like `is_denied`, without an audit: for lists, and where another right may suffice."""
    authorizer = broker.authorizer
    return authorizer.is_enabled and not authorizer.allows(call.identity, operation, resource, name)


def is_cluster_hidden(broker: Broker, call: Call, operation: Operation) -> bool:
    return is_hidden(broker, call, operation, CLUSTER, CLUSTER_NAME)


def log_denial(
    broker: Broker, call: Call, operation: Operation, resource: ResourceType, name: str
) -> None:
    api = call.header.api
    request = api.name if api is not None else ""
    broker.access.denied(resource.name, operation.name)
    broker.audit.denied(call.identity, operation, resource, name, request)


def operations(broker: Broker, call: Call, resource: ResourceType, name: str) -> int:
    """The operations that the client may do with a resource, one bit each."""
    authorizer = broker.authorizer
    if not authorizer.is_enabled:
        return _ALL_OPERATIONS[resource]
    identity = call.identity
    return sum(
        1 << operation
        for operation in _OPERATIONS[resource]
        if authorizer.allows(identity, operation, resource, name)
    )


def cluster_operations(broker: Broker, call: Call) -> int:
    """No operation without DESCRIBE, as in Kafka."""
    if is_cluster_hidden(broker, call, Operation.DESCRIBE):
        return 0
    return operations(broker, call, CLUSTER, CLUSTER_NAME)
