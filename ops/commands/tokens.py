"""`moldau tokens`: delegation tokens, with which others log in as a user for a while."""

from __future__ import annotations

import argparse
import base64
import binascii
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.ops.client import ClientError, Cluster
from moldau.ops.command_line import (
    add_actions,
    client_settings,
    complain,
    duration_text,
    parse_duration,
    parsed_by,
    print_facts,
    print_json,
    print_table,
    printable,
    run_action,
)
from moldau.ops.commands.token_settings import (
    connection_settings,
    properties_text,
    write_properties,
)
from moldau.ops.commands.transactions_describe import time_text
from moldau.ops.operations.tokens import (
    AT_ONCE,
    DEFAULT,
    TokenInfo,
    create_token,
    expire_token,
    find_tokens,
    renew_token,
    user_of,
)

DESCRIPTION = """\
Delegation tokens: a client logs in with one as the token's owner, until it expires or is removed.
So jobs need no password of a user. SCRAM is how they log in: the user name is the token's id, the
password its HMAC, and tokenauth=true says that it is a token. They need a secret of the broker:
`moldau serve --secure` makes one, else it is delegation.token.secret.key under [broker].
"""

EXAMPLES = """\
examples:
  moldau tokens create --owner alice --properties job.properties
  moldau tokens create --owner alice --renewer spark --lifetime 2d
  moldau tokens list
  moldau tokens renew dGhpcyBpcyBhIHRva2Vu
  moldau tokens expire dGhpcyBpcyBhIHRva2Vu
  moldau tokens ACTION --help               all options of an action
"""

CREATE_HELP = """\
examples:
  moldau tokens create --command-config alice.properties       a token of alice's, by herself
  moldau tokens create --owner alice                           by the user that runs the broker
  moldau tokens create --owner alice --renewer spark --lifetime 2d
  moldau tokens create --owner alice --properties job.properties
      then: moldau topics list --bootstrap HOST:PORT --command-config job.properties

The token has to be renewed every 24 hours (delegation.token.expiry.time.ms), for 7 days at most
(delegation.token.max.lifetime.ms). It may do what its owner may, but not create tokens. A token for
somebody else needs the right to it:
  moldau acls add --user spark --tokens-of alice --operation create_tokens
"""

LIST_HELP = """\
examples:
  moldau tokens list                        all that you may see
  moldau tokens list --owner alice          of which alice is owner or renewer
  moldau tokens list --show-hmac --json
"""

RENEW_HELP = """\
examples:
  moldau tokens renew dGhpcyBpcyBhIHRva2Vu
  moldau tokens renew dGhpcyBpcyBhIHRva2Vu --for 1h
  moldau tokens renew --hmac-stdin < hmac.txt

The owner and the renewers may do this, and the user that runs the broker on its machine. Clients
that are connected log in again by themselves when their session ends, if they can (KIP-368).
"""

EXPIRE_HELP = """\
examples:
  moldau tokens expire dGhpcyBpcyBhIHRva2Vu            now: its clients are disconnected
  moldau tokens expire dGhpcyBpcyBhIHRva2Vu --in 10min
  moldau tokens expire --owner alice                   all tokens of alice

The owner and the renewers may do this, and the user that runs the broker on its machine.
"""

# An action on the token with this id and HMAC; --json prints the result.
Change = Callable[[str, bytes], dict[str, Any]]
LAST_MS = 253_402_300_799_000  # of the year 9999


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = add_actions(parser, DESCRIPTION, EXAMPLES)
    creating = add("create", "create a token", CREATE_HELP, _create)
    creating.add_argument("--owner", type=user_of, metavar="NAME", help="whose token; else yours")
    creating.add_argument(
        "--renewer", action="append", default=[], type=user_of, metavar="NAME",
        help="who may renew and expire it beside its owner",
    )  # fmt: skip
    creating.add_argument(
        "--lifetime", type=parsed_by(_period), metavar="DURATION",
        help="how long it can be renewed, such as 2d (default: what is configured, 7 days)",
    )  # fmt: skip
    creating.add_argument(
        "--properties", metavar="FILE",
        help="write what a client needs to log in with it, for Java and --command-config",
    )  # fmt: skip
    listing = add("list", "show tokens", LIST_HELP, _list)
    listing.add_argument(
        "--owner", action="append", type=user_of, metavar="NAME",
        help="of which NAME is owner, requester or renewer",
    )  # fmt: skip
    listing.add_argument("--show-hmac", action="store_true", help="what they log in with, too")
    renewing = add("renew", "renew tokens", RENEW_HELP, _renew)
    _add_which(renewing)
    renewing.add_argument(
        "--for", dest="period", type=parsed_by(_period), metavar="DURATION",
        help="from now on (default, and at most: what is configured, 24 hours)",
    )  # fmt: skip
    expiring = add("expire", "end tokens, at once or in a while", EXPIRE_HELP, _expire)
    _add_which(expiring)
    expiring.add_argument("--owner", type=user_of, metavar="NAME", help="all tokens of this user")
    expiring.add_argument(
        "--in", dest="period", type=parsed_by(parse_duration), metavar="DURATION",
        help="not at once",
    )  # fmt: skip


def _add_which(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tokens", nargs="*", metavar="ID")
    parser.add_argument(
        "--hmac-stdin", action="store_true",
        help="read the HMAC of one from standard input, where its id is not known",
    )  # fmt: skip


def _period(text: str) -> int:
    """Raises ValueError."""
    period = parse_duration(text)
    if not period:
        raise ValueError("want a duration above 0")
    return period


run = run_action


# --- actions ---


def _create(cluster: Cluster, arguments: argparse.Namespace) -> int:
    owner: str | None = arguments.owner
    if owner is None and cluster.local is not None:
        raise ClientError("whose token? add --owner NAME: on the broker's machine you are no user")
    path: str | None = arguments.properties
    # Before the token is made, which would be no one's if this failed.
    settings = {} if path is None else connection_settings(cluster, client_settings(arguments))
    token = create_token(cluster, owner, arguments.renewer, arguments.lifetime)
    if path is not None:
        try:
            write_properties(path, properties_text(token, settings))
        except ClientError:
            expire_token(cluster, token.token_id, token.token_hmac, AT_ONCE)
            raise
    if arguments.json:
        print_json(_document(token, shows_hmac=True))
        return 0
    facts = {
        "token": token.token_id,
        "hmac": token.password,
        "owner": token.owner,
        "renewers": ", ".join(token.renewers),
        "expires": _time(token.expires_at),
        "renewable until": _time(token.max_at),
    }
    print_facts(facts if path is None else {**facts, "hmac": f"in {path}"})
    return 0


def _list(cluster: Cluster, arguments: argparse.Namespace) -> int:
    found = find_tokens(cluster, arguments.owner)
    if arguments.json:
        print_json({"tokens": [_document(one, shows_hmac=arguments.show_hmac) for one in found]})
        return 0
    columns = ["token", "owner", "requester", "renewers", "expires", "renewable until"]
    rows: list[list[str]] = [
        [
            one.token_id,
            one.owner,
            "" if one.requester == one.owner else one.requester,
            ", ".join(one.renewers),
            _time(one.expires_at),
            _time(one.max_at),
        ]
        for one in found
    ]
    if arguments.show_hmac:
        columns.append("hmac")
        for row, one in zip(rows, found, strict=True):
            row.append(one.password)
    print_table(columns, rows)
    return 0


def _renew(cluster: Cluster, arguments: argparse.Namespace) -> int:
    period = arguments.period or DEFAULT

    def renew(token_id: str, token_hmac: bytes) -> dict[str, Any]:
        expires_at = renew_token(cluster, token_id, token_hmac, period)
        if not arguments.json:
            print(printable(f"token {token_id} expires {_time(expires_at)}"))
        return {"token": token_id, "expires_ms": expires_at}

    return _for_each(cluster, arguments, "renewed", renew)


def _expire(cluster: Cluster, arguments: argparse.Namespace) -> int:
    period = AT_ONCE if arguments.period is None else arguments.period

    def expire(token_id: str, token_hmac: bytes) -> dict[str, Any]:
        expires_at = expire_token(cluster, token_id, token_hmac, period)
        if not arguments.json:
            what = "is removed" if period == AT_ONCE else f"expires {_time(expires_at)}"
            print(printable(f"token {token_id} {what}"))
        return {"token": token_id, "expires_ms": expires_at}

    return _for_each(cluster, arguments, "expired", expire)


def _for_each(cluster: Cluster, arguments: argparse.Namespace, did: str, change: Change) -> int:
    wanted = list(_wanted(cluster, arguments))
    done = []
    for token_id, token_hmac in wanted:
        try:
            if token_hmac is None:
                raise ClientError(
                    f"there is no token {token_id} that you may see; `moldau tokens list` shows "
                    "those; whoever has its HMAC can use --hmac-stdin",
                    ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
                )
            done.append(change(token_id, token_hmac))
        except ClientError as error:
            complain(error)
    if arguments.json:
        print_json({did: done})
    return 0 if len(done) == len(wanted) else 1


def _wanted(cluster: Cluster, arguments: argparse.Namespace) -> Sequence[tuple[str, bytes | None]]:
    """Ids and HMACs; no HMAC: there is no such token."""
    owner: str | None = getattr(arguments, "owner", None)
    given = bool(arguments.tokens) + arguments.hmac_stdin + (owner is not None)
    if given != 1:
        some = "an ID, --owner NAME" if hasattr(arguments, "owner") else "an ID"
        arguments.action_parser.error(f"which token? give {some} or --hmac-stdin")
    if arguments.hmac_stdin:
        return [("of this HMAC", _read_hmac())]
    if owner is not None:
        found = find_tokens(cluster, [owner])
        return [(one.token_id, one.token_hmac) for one in found if user_of(one.owner) == owner]
    known = {one.token_id: one.token_hmac for one in find_tokens(cluster)}
    return [(each, known.get(each)) for each in dict.fromkeys(arguments.tokens)]


def _read_hmac() -> bytes:
    try:
        return base64.b64decode(sys.stdin.readline().strip(), validate=True)
    except (binascii.Error, ValueError):
        raise ClientError("standard input: want an HMAC in base64, as it was shown") from None


def _document(token: TokenInfo, *, shows_hmac: bool) -> dict[str, Any]:
    document = {
        "token": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued_ms": token.issued_at,
        "expires_ms": token.expires_at,
        "max_ms": token.max_at,
    }
    return {**document, "hmac": token.password} if shows_hmac else document


def _time(at_ms: int) -> str:
    if at_ms > LAST_MS:
        return "never"
    left = at_ms / 1000 - time.time()
    rest = f"in {duration_text(left)}" if left > 0 else "over"
    return f"{time_text(at_ms)} ({rest})"
