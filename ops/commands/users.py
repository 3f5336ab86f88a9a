"""`moldau users`: who can log in with a password (SCRAM, and PLAIN with the same one)."""

from __future__ import annotations

import argparse
import getpass
import sys

from moldau.broker.security.acl import AclFilter
from moldau.ops.client import ClientError, Cluster
from moldau.ops.command_line import (
    AddAction,
    add_actions,
    print_json,
    print_table,
    printable,
    run_action,
    show_deleted,
    try_each,
)
from moldau.ops.operations.acls import find_acls
from moldau.ops.operations.tokens import find_tokens
from moldau.ops.operations.users import (
    MECHANISMS,
    delete_credentials,
    find_users,
    generate_password,
    set_password,
)

DESCRIPTION = """\
Users that log in with a password: SCRAM-SHA-256, SCRAM-SHA-512 and PLAIN. What a user may do is
said by ACLs (`moldau acls`).
"""

EXAMPLES = """\
examples:
  moldau users add alice --generate           shows the password once
  moldau users add alice --password-stdin < password.txt
  moldau users list
  moldau users passwd alice
  moldau users remove alice
"""

ADD_HELP = """\
examples:
  moldau users add alice                      asks for the password
  moldau users add alice --generate           makes one and shows it, once
  pass show kafka/alice | moldau users add alice --password-stdin

Then say what alice may do, such as
  moldau acls add --user alice --consumer --topic orders --group billing
"""

PASSWD_HELP = """\
examples:
  moldau users passwd alice --generate
  moldau users passwd alice --password-stdin < password.txt

Clients that are connected with the old password are disconnected within a second.
"""

REMOVE_HELP = """\
examples:
  moldau users remove alice

Clients that are connected as this user are disconnected within a second. Its ACLs stay, and so do
its delegation tokens, which log in without the user:
  moldau acls remove --user alice
  moldau tokens expire --owner alice
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser, DESCRIPTION, EXAMPLES)
    _add_with_password(add, "add", "add a user", ADD_HELP)
    add("list", "show all users", "examples:\n  moldau users list\n", _list)
    _add_with_password(add, "passwd", "give a user another password", PASSWD_HELP)
    removing = add("remove", "remove users", REMOVE_HELP, _remove)
    removing.add_argument("users", nargs="+", metavar="NAME")


def _add_with_password(add: AddAction, name: str, summary: str, text: str) -> None:
    parser = add(name, summary, text, _set_password)
    parser.set_defaults(is_new=name == "add")
    parser.add_argument("user", metavar="NAME")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--password-stdin", action="store_true", help="read it from standard input, one line"
    )
    source.add_argument("--generate", action="store_true", help="make one and show it once")


run = run_action


def _set_password(cluster: Cluster, arguments: argparse.Namespace) -> int:
    user: str = arguments.user
    exists = user in find_users(cluster, [user])
    if exists and arguments.is_new:
        raise ClientError(f"user {user} exists already; `moldau users passwd` changes its password")
    if not exists and not arguments.is_new:
        raise ClientError(f"there is no user {user}; `moldau users add` adds it")
    password = generate_password() if arguments.generate else _read_password(arguments)
    set_password(cluster, user, password)
    if arguments.json:
        shown = {"password": password} if arguments.generate else {}
        print_json({"user": user, "mechanisms": list(MECHANISMS.values()), **shown})
        return 0
    print(printable(f"user {user} added" if arguments.is_new else f"user {user}: password changed"))
    if arguments.generate:
        print(f"password: {password}")
        print("It is not shown again.", file=sys.stderr)
    return 0


def _read_password(arguments: argparse.Namespace) -> str:
    if arguments.password_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        password = getpass.getpass(f"password of {printable(arguments.user)}: ")
        if password != getpass.getpass("once more: "):
            raise ClientError("the two passwords differ, nothing was done")
    else:
        raise ClientError("which password? add --password-stdin or --generate")
    if not password:
        raise ClientError("an empty password is not accepted, nothing was done")
    return password


def _list(cluster: Cluster, arguments: argparse.Namespace) -> int:
    found = {
        user: {MECHANISMS.get(kind, str(kind)): count for kind, count in credentials}
        for user, credentials in find_users(cluster).items()
    }
    if arguments.json:
        print_json({"users": [{"user": one, "mechanisms": found[one]} for one in found]})
        return 0
    rows = [
        (user, ", ".join(mechanisms), max(mechanisms.values(), default=None))
        for user, mechanisms in found.items()
    ]
    print_table(("user", "mechanisms", "iterations"), rows)
    return 0


def _remove(cluster: Cluster, arguments: argparse.Namespace) -> int:
    wanted = list(dict.fromkeys(arguments.users))
    found = find_users(cluster, wanted)

    def remove(user: str) -> str:
        if user not in found:
            raise ClientError(f"there is no user {user}; `moldau users list` shows them")
        delete_credentials(cluster, user, found[user])
        return user

    removed = try_each(wanted, remove)
    show_deleted(arguments, removed)
    if not arguments.json:
        for user in removed:
            _say_what_is_left(cluster, user)
    return 0 if removed == wanted else 1


def _say_what_is_left(cluster: Cluster, user: str) -> None:
    """A later user of the same name would have the rights of this one, and its tokens go on."""
    try:
        left = len(find_acls(cluster, [AclFilter(principal=f"User:{user}")]))
    except ClientError:  # no authorizer, or the one who removes users may not see ACLs
        left = 0
    if left:
        print(
            f"ACLs that still name {printable(user)}: {left}. `moldau acls list --user NAME` shows "
            "them, `moldau acls remove --user NAME` removes them.",
            file=sys.stderr,
        )
    try:
        tokens = [one for one in find_tokens(cluster, [user]) if one.owner == f"User:{user}"]
    except ClientError:  # there are none here, or the one who removes users has no business there
        return
    if tokens:
        print(
            f"Delegation tokens of {printable(user)} that still log in: {len(tokens)}. `moldau "
            "tokens list --owner NAME` shows them, `moldau tokens expire --owner NAME` ends them.",
            file=sys.stderr,
        )
