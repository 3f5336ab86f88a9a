"""`moldau acls explain`: may this client do that, and which ACL says so?"""

from __future__ import annotations

import argparse

from moldau.broker.security.acl import Acl
from moldau.ops.client import Cluster
from moldau.ops.command_line import AddAction, print_json, printable
from moldau.ops.commands.acl_options import (
    acl_document,
    add_what,
    add_whom,
    principals,
    resources,
)
from moldau.ops.operations.acl_explanation import explain_acls
from moldau.ops.operations.acls import acl_origins, acl_text

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


def add_explain(add: AddAction) -> None:
    parser = add("explain", "say whether something is allowed, and why", HELP, _explain)
    add_whom(parser, many=False)
    add_what(parser, many=False)


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
    made = acl_origins(cluster)
    documents = []
    for operation, answer, lacks in explain_acls(
        cluster, whom[0], what[0], arguments.operation, arguments.host
    ):
        documents.append(
            {
                "operation": operation.name,
                "allowed": answer.is_allowed,
                "reason": answer.reason,
                "by": None if answer.by is None else acl_document(answer.by),
                "nearest": None if answer.nearest is None else acl_document(answer.nearest),
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
