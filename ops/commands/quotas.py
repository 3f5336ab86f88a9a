"""`moldau quotas`: how much clients may send, read and ask for before they are slowed down."""

from __future__ import annotations

import argparse
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.ops.client import ClientError, Cluster
from moldau.ops.command_line import (
    add_actions,
    parsed_by,
    print_json,
    print_table,
    printable,
    run_action,
)
from moldau.ops.operations.quotas import (
    KEYS,
    Entity,
    alter_quotas,
    entity_text,
    find_quotas,
    parse_rate,
)

DESCRIPTION = """\
Quotas of clients. One that goes over its quota is slowed down, never refused. They count per
worker, as Kafka's do per broker, and the most specific one applies: user and client id together,
then the user, then the client id, then the defaults.
"""

EXAMPLES = """\
examples:
  moldau quotas set --user alice --producer-byte-rate 10mb --consumer-byte-rate 20mb
  moldau quotas set --user alice --client-id batch --request-percentage 25
  moldau quotas set --user-defaults --producer-byte-rate 1mb     all users without one of their own
  moldau quotas set --ip 10.0.0.7 --connection-creation-rate 10
  moldau quotas list
  moldau quotas remove --user alice --producer-byte-rate
  moldau quotas remove --user alice                              all of them
"""

# The option of an entity, and that of the default for all without a quota of their own.
ENTITIES = {
    "user": ("--user", "--user-defaults"),
    "client-id": ("--client-id", "--client-defaults"),
    "ip": ("--ip", "--ip-defaults"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser, DESCRIPTION, EXAMPLES)
    setting = add("set", "set quotas of an entity", EXAMPLES, _set)
    _add_entity(setting)
    for key, text in KEYS.items():
        setting.add_argument(
            _option(key), type=parsed_by(parse_rate), dest=key, metavar="N", help=text
        )
    listing = add("list", "show quotas", EXAMPLES, _list)
    _add_entity(listing)
    removing = add("remove", "remove quotas of an entity", EXAMPLES, _remove)
    _add_entity(removing)
    for key in KEYS:
        removing.add_argument(
            _option(key), action="store_true", dest=key, help="only this one; may be several"
        )


run = run_action


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _add_entity(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("of whom")
    for kind, (option, defaults) in ENTITIES.items():
        one = group.add_mutually_exclusive_group()
        metavar = {"user": "NAME", "client-id": "ID", "ip": "ADDRESS"}[kind]
        one.add_argument(option, metavar=metavar, dest=f"entity_{kind}")
        one.add_argument(
            defaults, action="store_true", dest=f"default_{kind}",
            help="the default for those without one of their own",
        )  # fmt: skip


def _entity(arguments: argparse.Namespace) -> Entity:
    """Exits when it is none."""
    entity = _given(arguments)
    kinds = {kind for kind, _ in entity}
    if not entity:
        arguments.action_parser.error("of whom? add --user, --client-id, --ip or a default of them")
    if "ip" in kinds and len(kinds) > 1:
        arguments.action_parser.error("--ip cannot be combined with --user or --client-id")
    return entity


def _given(arguments: argparse.Namespace) -> Entity:
    values = vars(arguments)
    return tuple(
        (kind, values[f"entity_{kind}"])
        for kind in ENTITIES
        if values[f"entity_{kind}"] is not None or values[f"default_{kind}"]
    )


def _set(cluster: Cluster, arguments: argparse.Namespace) -> int:
    entity = _entity(arguments)
    changes = {key: value for key in KEYS if (value := getattr(arguments, key)) is not None}
    if not changes:
        arguments.action_parser.error(f"how much? add one of {', '.join(map(_option, KEYS))}")
    alter_quotas(cluster, entity, dict(changes))
    return _show_one(arguments, entity, changes)


def _remove(cluster: Cluster, arguments: argparse.Namespace) -> int:
    entity = _entity(arguments)
    keys = [key for key in KEYS if getattr(arguments, key)]
    now = dict(find_quotas(cluster, entity)).get(entity, {})
    removed = [key for key in now if key in keys or not keys]
    if not removed:
        raise ClientError(
            f"{entity_text(entity)} has no such quota; `moldau quotas list` shows them"
        )
    alter_quotas(cluster, entity, dict.fromkeys(removed))
    if arguments.json:
        print_json({"entity": dict(entity), "removed": removed})
    else:
        print(printable(f"{entity_text(entity)}: removed {', '.join(removed)}"))
    return 0


def _list(cluster: Cluster, arguments: argparse.Namespace) -> int:
    try:
        found = find_quotas(cluster, _given(arguments))
    except ClientError as error:
        if ErrorCode.UNSUPPORTED_VERSION.name in str(error):
            raise ClientError("this broker has no quotas of clients") from None
        raise
    if arguments.json:
        print_json({"quotas": [{"entity": dict(one), "values": values} for one, values in found]})
        return 0
    columns = [key for key in KEYS if any(key in values for _, values in found)]
    rows = [
        (entity_text(entity), *(_number(values.get(key)) for key in columns))
        for entity, values in found
    ]
    print_table(("of", *(key.replace("_", " ") for key in columns)), rows)
    return 0


def _show_one(arguments: argparse.Namespace, entity: Entity, values: dict[str, float]) -> int:
    if arguments.json:
        print_json({"entity": dict(entity), "values": values})
        return 0
    facts = ", ".join(f"{key} {_number(value)}" for key, value in values.items())
    print(printable(f"{entity_text(entity)}: {facts}"))
    return 0


def _number(value: float | None) -> Any:
    return None if value is None else int(value) if value == int(value) else str(value)
