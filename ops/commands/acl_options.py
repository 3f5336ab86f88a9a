"""The options of `moldau acls`, as ACLs to make or filters to find them by."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product

from moldau.broker.security.acl import WILDCARD, Acl, AclFilter
from moldau.broker.security.identity import USER
from moldau.broker.security.resources import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from moldau.ops.command_line import parsed_by
from moldau.ops.operations.acls import Resource

RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "delegation_token": ResourceType.DELEGATION_TOKEN,
    "tokens_of": ResourceType.USER,
}
OPERATIONS = [one.name.lower() for one in Operation if one > Operation.ANY]


def add_whom(parser: argparse.ArgumentParser, *, many: bool) -> None:
    whom = parser.add_argument_group("whom")
    action = "append" if many else "store"
    whom.add_argument("--user", action=action, metavar="NAME", help="User:NAME; '*' is everyone")
    whom.add_argument(
        "--principal", action=action, type=parsed_by(_principal), metavar="TYPE:NAME",
        help="in Kafka's form, such as User:CN=billing,O=example of a client certificate",
    )  # fmt: skip
    whom.add_argument(
        "--host", action=action, metavar="ADDRESS", help="only from this address ('*': any)"
    )


def add_what(parser: argparse.ArgumentParser, *, many: bool) -> None:
    what = parser.add_argument_group("what")
    action = "append" if many else "store"
    what.add_argument("--topic", action=action, metavar="TOPIC", help="'*' is every topic")
    what.add_argument("--group", action=action, metavar="GROUP", help="a consumer group")
    what.add_argument("--transactional-id", action=action, metavar="ID")
    what.add_argument(
        "--delegation-token", action=action, metavar="ID", help="its operation is describe"
    )
    what.add_argument(
        "--tokens-of", action=action, metavar="NAME",
        help="delegation tokens of this user ('*': of everyone): create_tokens, describe_tokens",
    )  # fmt: skip
    what.add_argument(
        "--cluster", action="store_true", help="the cluster: users, ACLs, quotas, configurations"
    )
    what.add_argument(
        "--operation", action=action, type=parsed_by(parse_operation), metavar="OPERATION",
        help=", ".join(OPERATIONS),
    )  # fmt: skip
    if many:
        what.add_argument(
            "--prefixed", action="store_true", help="the names are beginnings of names"
        )
        what.add_argument(
            "--producer", action="store_true",
            help="write, describe and create topics; write and describe transactional ids",
        )  # fmt: skip
        what.add_argument(
            "--consumer", action="store_true", help="read and describe topics, read groups"
        )


def _principal(text: str) -> str:
    kind, _, name = text.partition(":")
    if not kind or not name:
        raise ValueError(f"want TYPE:NAME such as User:alice, got {text!r}")
    return text


def parse_operation(text: str) -> Operation:
    name = text.strip().upper().replace("-", "_")
    if name not in Operation.__members__ or Operation[name] <= Operation.ANY:
        raise ValueError(f"there is no operation {text}: choose from {', '.join(OPERATIONS)}")
    return Operation[name]


def principals(arguments: argparse.Namespace) -> list[str]:
    users = [f"User:{name}" for name in _listed(arguments.user)]
    return users + _listed(arguments.principal)


def resources(arguments: argparse.Namespace) -> list[Resource]:
    named = [
        Resource(kind, _principal_of(name) if kind is ResourceType.USER else name)
        for field, kind in RESOURCES.items()
        for name in _listed(getattr(arguments, field))
    ]
    return named + ([Resource(ResourceType.CLUSTER, CLUSTER_NAME)] if arguments.cluster else [])


def _principal_of(name: str) -> str:
    """The name of a user in ACLs, which has its type."""
    return name if name == WILDCARD or name.startswith(USER) else USER + name


def _listed(given: list[str] | str | None) -> list[str]:
    return given if isinstance(given, list) else [given] if given else []


# --- ACLs to make ---


def wanted_acls(arguments: argparse.Namespace) -> list[Acl]:
    """Raises ValueError: something is missing."""
    whom = principals(arguments)
    if not whom:
        raise ValueError("whom? add --user NAME ('*' is everyone)")
    if not resources(arguments):
        raise ValueError(
            "what? add --topic, --group, --transactional-id, --delegation-token, --tokens-of or "
            "--cluster"
        )
    granted = list(_granted(arguments))
    permission = Permission.DENY if arguments.deny else Permission.ALLOW
    return [
        Acl(one.kind, one.name, _pattern(arguments, one), principal, host, operation, permission)
        for principal, host, (one, operation) in product(
            dict.fromkeys(whom), dict.fromkeys(_listed(arguments.host) or [WILDCARD]), granted
        )
    ]


def is_role(arguments: argparse.Namespace) -> bool:
    return bool(arguments.producer or arguments.consumer)


def _granted(arguments: argparse.Namespace) -> Iterator[tuple[Resource, Operation]]:
    if not is_role(arguments) and not arguments.operation:
        raise ValueError("what may they do? add --producer, --consumer or --operation OPERATION")
    _check_roles(arguments)
    operations: dict[tuple[Resource, Operation], None] = {}
    for one in resources(arguments):
        for operation in [*_of_roles(arguments, one.kind), *(arguments.operation or ())]:
            operations[one, operation] = None
    yield from operations


def _check_roles(arguments: argparse.Namespace) -> None:
    if arguments.deny and is_role(arguments):
        raise ValueError("--producer and --consumer are what is allowed: --deny has --operation")
    if arguments.producer and not arguments.topic:
        raise ValueError("--producer needs the --topic it writes to")
    if arguments.consumer and not (arguments.topic and arguments.group):
        raise ValueError("--consumer needs the --topic it reads and its --group ('*': any)")
    if arguments.cluster and not arguments.operation:
        raise ValueError("--cluster needs an --operation")
    if (arguments.delegation_token or arguments.tokens_of) and not arguments.operation:
        raise ValueError("--delegation-token and --tokens-of need an --operation")
    if arguments.group and not arguments.consumer and not arguments.operation:
        raise ValueError("--group needs --consumer or an --operation")
    if arguments.transactional_id and not arguments.producer and not arguments.operation:
        raise ValueError("--transactional-id needs --producer or an --operation")


def _of_roles(arguments: argparse.Namespace, kind: ResourceType) -> Iterator[Operation]:
    if arguments.producer and kind is ResourceType.TOPIC:
        yield from (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
    if arguments.producer and kind is ResourceType.TRANSACTIONAL_ID:
        yield from (Operation.WRITE, Operation.DESCRIBE)
    if arguments.consumer and kind is ResourceType.TOPIC:
        yield from (Operation.READ, Operation.DESCRIBE)
    if arguments.consumer and kind is ResourceType.GROUP:
        yield Operation.READ


def _pattern(arguments: argparse.Namespace, resource: Resource) -> PatternType:
    is_prefix = arguments.prefixed and resource.kind is not ResourceType.CLUSTER
    return PatternType.PREFIXED if is_prefix else PatternType.LITERAL


# --- ACLs to find ---


def filters(arguments: argparse.Namespace, pattern: PatternType) -> list[AclFilter]:
    """An option that is not given matches everything; `pattern` is how names are compared."""
    nothing: list[None] = [None]
    kinds = Permission.DENY if arguments.deny else Permission.ANY
    return [
        AclFilter(
            ResourceType.ANY if one is None else one.kind,
            None if one is None else one.name,
            PatternType.ANY if one is None else pattern,
            principal,
            host,
            operation,
            kinds,
        )
        for principal, host, operation, one in product(
            principals(arguments) or nothing,
            _listed(arguments.host) or nothing,
            arguments.operation or [Operation.ANY],
            resources(arguments) or nothing,
        )
    ]


# --- --json ---


def acl_document(acl: Acl) -> dict[str, str]:
    return {
        "principal": acl.principal,
        "permission": acl.permission.name,
        "operation": acl.operation.name,
        "resource_type": acl.resource.name,
        "resource": acl.name,
        "pattern": acl.pattern.name,
        "host": acl.host,
    }
