"""`moldau acls explain`: may this client do that, and which ACL says so?"""

from __future__ import annotations

import argparse
from typing import NamedTuple

from moldau.broker.security.acl import Acl
from moldau.broker.security.resources import Operation
from moldau.ops.client import ClientError, Cluster
from moldau.ops.command_line import AddAction, print_json, printable
from moldau.ops.commands.acl_options import (
    Resource,
    acl_text,
    add_what,
    add_whom,
    principals,
    resources,
)
from moldau.ops.operations.acl_explanation import Explanation, Question, differences, explain
from moldau.ops.operations.acls import document, find_acls, origins
from moldau.ops.operations.configs import broker_configs

HELP = """\
examples:
  moldau acls explain --user alice --topic orders-eu --operation write
      denied: no ACL allows it
      nearest: ALLOW READ on topics orders-* for User:alice (it allows READ; 2026-11-16, by local)
  moldau acls explain --user alice --group billing --operation read --host 10.0.0.7
  moldau acls explain --user alice --topic orders --json | jq .allowed

Without --operation all operations are explained. The decision is made here, of the broker's ACLs,
by the broker's rules. Who made an ACL is shown where the broker runs on this machine.
"""

KEYS = ("authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found")
COMMON = (Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE,
          Operation.ALTER, Operation.DESCRIBE)  # fmt: skip


def add_explain(add: AddAction) -> None:
    parser = add("explain", "say whether something is allowed, and why", HELP, _explain)
    add_whom(parser, many=False)
    add_what(parser, many=False)


class Explained(NamedTuple):
    operation: Operation
    answer: Explanation
    lacks: list[str]  # what keeps the nearest ACL from applying


def explained(
    cluster: Cluster, principal: str, what: Resource, operation: Operation | None, host: str | None
) -> list[Explained]:
    """Of one operation, or of the common ones. Raises ClientError."""
    configs = broker_configs(cluster, KEYS)
    if not configs["authorizer.class.name"]:
        raise ClientError(
            "no authorizer is configured, so everything is allowed to everyone; start the broker "
            "with --secure, or with authorizer.class.name=standard under [broker]"
        )
    acls = find_acls(cluster)
    supers = [one.strip() for one in configs["super.users"].split(";")]
    is_open = configs["allow.everyone.if.no.acl.found"] == "true"
    found = []
    for each in [operation] if operation else COMMON:
        question = Question(principal, each, *what, host)
        answer = explain(question, acls, supers, allow_if_no_acl=is_open)
        lacks = differences(question, answer.nearest) if answer.nearest else []
        found.append(Explained(each, answer, lacks))
    return found


def _explain(cluster: Cluster, arguments: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = arguments.action_parser
    whom, what = principals(arguments), resources(arguments)
    if len(whom) != 1:
        parser.error("whom? add --user NAME or --principal TYPE:NAME")
    if len(what) != 1:
        parser.error(
            "what? add one of --topic, --group, --transactional-id, --delegation-token, "
            "--tokens-of, --cluster"
        )
    made = origins(cluster)
    documents = []
    for operation, answer, lacks in explained(
        cluster, whom[0], what[0], arguments.operation, arguments.host
    ):
        documents.append(
            {
                "operation": operation.name,
                "allowed": answer.is_allowed,
                "reason": answer.reason,
                "by": None if answer.by is None else document(answer.by),
                "nearest": None if answer.nearest is None else document(answer.nearest),
                "lacks": lacks,
            }
        )
        if not arguments.json:
            start = "" if arguments.operation else f"{operation.name.lower():<9}"
            verdict = "allowed" if answer.is_allowed else "denied"
            by = [] if answer.by is None else _origin(made, answer.by)
            print(printable(f"{start}{verdict}: {answer.reason}{_in_brackets(by)}"))
            if answer.nearest is not None and arguments.operation:
                notes = _in_brackets([*lacks, *_origin(made, answer.nearest)])
                print(printable(f"nearest: {acl_text(answer.nearest)}{notes}"))
    if arguments.json:
        print_json(documents[0] if arguments.operation else {"operations": documents})
    return 0


def _origin(made: dict[str, str], acl: Acl) -> list[str]:
    found = made.get(acl.text)
    return [] if found is None else [found]


def _in_brackets(notes: list[str]) -> str:
    return f" ({'; '.join(notes)})" if notes else ""
