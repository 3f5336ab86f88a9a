"""`moldau acls`: what the command line means, and what is explained."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import pytest

from moldau.broker.security.acl import Acl, AclFilter
from moldau.broker.security.resources import Operation, PatternType, Permission, ResourceType
from moldau.ops.commands import acls as command
from moldau.ops.commands.acl_options import filters, wanted_acls
from moldau.ops.operations.acl_explanation import Question, differences, explain
from moldau.ops.operations.acls import acl_text

LITERAL, PREFIXED, MATCH = PatternType.LITERAL, PatternType.PREFIXED, PatternType.MATCH
ALLOW, DENY = Permission.ALLOW, Permission.DENY
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def texts(acls: Sequence[Acl]) -> list[str]:
    return [acl_text(acl) for acl in acls]


def allow(
    operation: Operation,
    name: str,
    principal: str = "User:alice",
    *,
    pattern: PatternType = LITERAL,
    host: str = "*",
    permission: Permission = ALLOW,
) -> Acl:
    return Acl(TOPIC, name, pattern, principal, host, operation, permission)


def test_a_producer_and_its_transactions() -> None:
    given = parsed("add", "--user", "alice", "--producer", "--topic", "orders",
                   "--transactional-id", "billing")  # fmt: skip
    assert texts(wanted_acls(given)) == [
        "ALLOW WRITE on topic orders for User:alice",
        "ALLOW DESCRIBE on topic orders for User:alice",
        "ALLOW CREATE on topic orders for User:alice",
        "ALLOW WRITE on transactional id billing for User:alice",
        "ALLOW DESCRIBE on transactional id billing for User:alice",
    ]


def test_a_consumer_of_topics_by_prefix() -> None:
    given = parsed("add", "--user", "bob", "--consumer", "--topic", "orders-", "--prefixed",
                   "--group", "billing", "--host", "10.0.0.7")  # fmt: skip
    assert texts(wanted_acls(given)) == [
        "ALLOW READ on topics orders-* for User:bob from 10.0.0.7",
        "ALLOW DESCRIBE on topics orders-* for User:bob from 10.0.0.7",
        "ALLOW READ on groups billing* for User:bob from 10.0.0.7",
    ]


def test_operations_denials_and_the_cluster() -> None:
    given = parsed("add", "--user", "*", "--principal", "User:CN=x,O=y", "--deny",
                   "--operation", "all", "--operation", "alter-configs", "--topic", "*",
                   "--cluster", "--prefixed")  # fmt: skip
    found = texts(wanted_acls(given))
    assert len(found) == 8
    assert "DENY ALL on topics ** for everyone" in found
    assert "DENY ALTER_CONFIGS on the cluster for User:CN=x,O=y" in found


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--producer", "--topic", "t"], "whom?"),
        (["--user", "a", "--operation", "read"], "what?"),
        (["--user", "a", "--topic", "t"], "--producer, --consumer or --operation"),
        (["--user", "a", "--consumer", "--topic", "t"], "its --group"),
        (["--user", "a", "--producer", "--group", "g"], "--topic it writes"),
        (["--user", "a", "--producer", "--topic", "t", "--deny"], "--deny has --operation"),
        (["--user", "a", "--producer", "--topic", "t", "--cluster"], "--cluster needs"),
        (["--user", "a", "--producer", "--topic", "t", "--group", "g"], "--group needs"),
    ],
)
def test_what_is_missing_is_asked_for(words: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        wanted_acls(parsed("add", *words))


@pytest.mark.parametrize(
    ("words", "why"),
    [(["--operation", "drop"], "choose from all, read"), (["--principal", "alice"], "TYPE:NAME")],
)
def test_words_that_mean_nothing(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed("add", "--user", "a", "--topic", "t", *words)
    assert why in capsys.readouterr().err


def test_what_is_not_given_matches_everything() -> None:
    assert filters(parsed("list"), MATCH) == [AclFilter()]
    given = parsed("list", "--user", "a", "--topic", "t", "--group", "g", "--deny")
    assert filters(given, MATCH) == [
        AclFilter(TOPIC, "t", MATCH, "User:a", None, Operation.ANY, DENY),
        AclFilter(GROUP, "g", MATCH, "User:a", None, Operation.ANY, DENY),
    ]


# --- explain ---

QUESTION = Question("User:alice", WRITE, TOPIC, "orders-eu")


def test_a_super_user_needs_no_acl() -> None:
    found = explain(QUESTION, [], ["User:alice"])
    assert (found.is_allowed, found.reason) == (True, "User:alice is a super user")


def test_the_acl_that_decides_is_named() -> None:
    by_prefix = allow(WRITE, "orders-", pattern=PREFIXED)
    found = explain(QUESTION, [allow(READ, "orders-eu"), by_prefix])
    assert found.is_allowed
    assert found.by == by_prefix
    denying = allow(Operation.ALL, "*", "User:*", permission=DENY)
    found = explain(QUESTION, [by_prefix, denying])
    assert not found.is_allowed
    assert found.by == denying


def test_an_acl_of_the_operation_itself_comes_before_one_that_implies_it() -> None:
    itself = allow(DESCRIBE, "orders-eu")
    question = QUESTION._replace(operation=DESCRIBE)
    assert explain(question, [allow(READ, "orders-eu"), itself]).by == itself
    assert explain(question, [allow(READ, "orders-eu")]).is_allowed


def test_the_nearest_acl_and_what_it_lacks() -> None:
    reading = allow(READ, "orders-", pattern=PREFIXED)
    found = explain(QUESTION, [allow(WRITE, "salaries", "User:bob"), reading])
    assert (found.is_allowed, found.reason, found.nearest) == (False, "no ACL allows it", reading)
    assert differences(QUESTION, reading) == ["it allows READ"]
    misspelt = allow(WRITE, "order-eu")
    assert explain(QUESTION, [misspelt]).nearest == misspelt
    assert differences(QUESTION, misspelt) == ["it is on topic order-eu"]
    elsewhere = allow(WRITE, "orders-eu", host="10.0.0.7")
    assert explain(QUESTION, [elsewhere]).nearest == elsewhere
    assert differences(QUESTION, elsewhere) == ["it is for clients at 10.0.0.7"]
    assert explain(QUESTION._replace(host="10.0.0.7"), [elsewhere]).is_allowed
    of_bob = allow(WRITE, "orders-eu", "User:bob")
    assert differences(QUESTION, of_bob) == ["it is for User:bob"]


def test_what_has_nothing_to_do_with_it_is_not_near() -> None:
    unrelated = allow(READ, "salaries", "User:bob")
    assert explain(QUESTION, [unrelated]).nearest is None


def test_a_broker_that_allows_where_no_acl_is() -> None:
    assert explain(QUESTION, [], allow_if_no_acl=True).is_allowed
    somebodys = [allow(READ, "orders-eu", "User:bob")]
    assert not explain(QUESTION, somebodys, allow_if_no_acl=True).is_allowed


def test_rights_to_delegation_tokens() -> None:
    words = ("--user", "spark", "--operation", "create_tokens")
    for name in ("alice", "User:alice"):
        assert texts(wanted_acls(parsed("add", *words, "--tokens-of", name))) == [
            "ALLOW CREATE_TOKENS on user User:alice for User:spark"
        ]
    assert texts(wanted_acls(parsed("add", *words, "--tokens-of", "*"))) == [
        "ALLOW CREATE_TOKENS on every user for User:spark"
    ]
    given = parsed("add", "--user", "bob", "--delegation-token", "x", "--operation", "describe")
    assert texts(wanted_acls(given)) == ["ALLOW DESCRIBE on delegation token x for User:bob"]
    (wanted,) = filters(parsed("list", "--tokens-of", "alice"), MATCH)
    assert (wanted.resource, wanted.name) == (ResourceType.USER, "User:alice")
    without = parsed("add", "--user", "bob", "--tokens-of", "alice", "--producer", "--topic", "t")
    with pytest.raises(ValueError, match="need an --operation"):
        wanted_acls(without)
