"""`moldau acls`: who may do what. Made, shown and removed here; `explain` has its own module."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from moldau.broker.security.acl import Acl
from moldau.broker.security.resources import PatternType
from moldau.ops.client import Cluster
from moldau.ops.command_line import add_actions, confirm, print_json, print_table, run_action
from moldau.ops.commands.acl_options import (
    acl_document,
    add_what,
    add_whom,
    filters,
    is_role,
    wanted_acls,
)
from moldau.ops.commands.acls_explain import add_explain
from moldau.ops.operations.acls import (
    EVERYTHING,
    acl_text,
    create_acls,
    delete_acls,
    exactly,
    find_acls,
)

DESCRIPTION = """\
Who may do what (ACLs), where an authorizer is configured: with `moldau serve --secure`, or
authorizer.class.name under [broker]. What no ACL allows is denied, except to super users.
"""

EXAMPLES = """\
examples:
  moldau acls add --user alice --producer --topic orders
  moldau acls add --user bob --consumer --topic orders- --prefixed --group billing
  moldau acls list --user alice
  moldau acls explain --user alice --topic orders-eu --operation write
  moldau acls ACTION --help                 all options of an action
"""

ADD_HELP = """\
examples:
  moldau acls add --user alice --producer --topic orders
  moldau acls add --user alice --producer --topic orders --transactional-id billing
  moldau acls add --user bob --consumer --topic orders- --group billing --prefixed
  moldau acls add --user eve --deny --operation all --topic salaries
  moldau acls add --user '*' --operation read --topic public --host 10.0.0.7
  moldau acls add --user ops --cluster --operation alter --operation describe
  moldau acls add --user spark --tokens-of alice --operation create_tokens

A DENY wins over every ALLOW. READ, WRITE, DELETE and ALTER imply DESCRIBE, ALTER_CONFIGS implies
DESCRIBE_CONFIGS. Changes are in force at once, also for clients that are connected.
With --prefixed every name given is a beginning: topics orders- are orders-eu, orders-us, …
"""

LIST_HELP = """\
examples:
  moldau acls list
  moldau acls list --user alice
  moldau acls list --topic orders-eu        all that apply to it: by name, by prefix, by '*'
  moldau acls list --json
"""

REMOVE_HELP = """\
examples:
  moldau acls remove --user alice                       everything of hers
  moldau acls remove --user bob --consumer --topic orders- --group billing --prefixed
  moldau acls remove --topic orders --operation write   of everyone
  moldau acls remove --all --yes

What is not given matches everything; names are compared as they were written. --producer and
--consumer remove what they would have added.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser, DESCRIPTION, EXAMPLES)
    adding = add("add", "allow or deny something", ADD_HELP, _add)
    add_whom(adding, many=True)
    add_what(adding, many=True)
    adding.add_argument("--deny", action="store_true", help="forbid it, whatever else allows it")

    listing = add("list", "show ACLs", LIST_HELP, _list)
    add_whom(listing, many=True)
    add_what(listing, many=True)
    listing.add_argument("--deny", action="store_true", help="only those that forbid")

    removing = add("remove", "remove ACLs", REMOVE_HELP, _remove)
    add_whom(removing, many=True)
    add_what(removing, many=True)
    removing.add_argument("--deny", action="store_true", help="only those that forbid")
    removing.add_argument("--all", action="store_true", help="every ACL there is")
    removing.add_argument("--yes", action="store_true", help="do not ask for confirmation")

    add_explain(add)


run = run_action


def _add(cluster: Cluster, arguments: argparse.Namespace) -> int:
    try:
        acls = wanted_acls(arguments)
    except ValueError as error:
        arguments.action_parser.error(str(error))
    create_acls(cluster, acls)
    if arguments.json:
        print_json({"added": [acl_document(acl) for acl in acls]})
        return 0
    for acl in acls:
        print(acl_text(acl))
    return 0


def _list(cluster: Cluster, arguments: argparse.Namespace) -> int:
    if is_role(arguments):
        arguments.action_parser.error("--producer and --consumer are for add and remove")
    pattern = PatternType.PREFIXED if arguments.prefixed else PatternType.MATCH
    found = find_acls(cluster, filters(arguments, pattern))
    if arguments.json:
        print_json({"acls": [acl_document(acl) for acl in found]})
    else:
        _print_acls(found)
    return 0


def _remove(cluster: Cluster, arguments: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = arguments.action_parser
    if is_role(arguments):
        try:
            wanted = [exactly(acl) for acl in wanted_acls(arguments)]
        except ValueError as error:
            parser.error(str(error))
    else:
        pattern = PatternType.PREFIXED if arguments.prefixed else PatternType.LITERAL
        wanted = filters(arguments, pattern)
        if not arguments.all and not arguments.deny and wanted == [EVERYTHING]:
            parser.error("which ones? name them, or say --all")
    if not arguments.yes:
        found = find_acls(cluster, wanted)
        if found:
            lines = "\n".join(f"  {acl_text(acl)}" for acl in found)
            confirm(f"Remove {len(found)} ACLs?\n{lines}\n")
    removed = delete_acls(cluster, wanted)
    if arguments.json:
        print_json({"removed": [acl_document(acl) for acl in removed]})
        return 0
    for acl in removed:
        print(f"removed: {acl_text(acl)}")
    if not removed:
        print("no ACL matches: nothing was removed")
    return 0


def _print_acls(acls: Sequence[Acl]) -> None:
    rows = [
        (
            acl.principal,
            acl.permission.name,
            acl.operation.name,
            acl.resource.name.lower().replace("_", " "),
            acl.name + ("*" if acl.pattern is PatternType.PREFIXED else ""),
            acl.pattern.name.lower(),
            acl.host,
        )
        for acl in acls
    ]
    columns = ("principal", "permission", "operation", "resource", "name", "pattern", "host")
    print_table(columns, rows)
