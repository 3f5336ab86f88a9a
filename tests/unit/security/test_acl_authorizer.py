"""Decisions by ACLs, compared with a matcher that looks at every ACL in turn."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moldau.broker.security import acl_authorizer
from moldau.broker.security.acl import Acl
from moldau.broker.security.acl_authorizer import AclAuthorizer, parse_super_users
from moldau.broker.security.acl_index import AclIndex
from moldau.broker.security.identity import OPERATOR, Identity, worker_identity
from moldau.broker.security.resources import Operation, PatternType, Permission, ResourceType

O, T, P, M = Operation, ResourceType, PatternType, Permission  # noqa: E741
ALICE = Identity("User:alice", "10.0.0.1")


# --- the oracle ---


def applies(acl: Acl, name: str) -> bool:
    if acl.pattern is P.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, "*")


def oracle(
    acls: Iterable[Acl], who: Identity, operation: Operation, kind: ResourceType, name: str
) -> bool | None:
    """None: no ACL applies to the resource, whoever asks."""
    on_resource = [acl for acl in acls if acl.resource is kind and applies(acl, name)]
    mine = [
        acl
        for acl in on_resource
        if acl.principal in (who.principal, "User:*") and acl.host in (who.host, "*")
    ]
    if any(acl.permission is M.DENY and acl.operation in (operation, O.ALL) for acl in mine):
        return False
    enough = {operation, O.ALL}
    if operation is O.DESCRIBE:
        enough |= {O.READ, O.WRITE, O.DELETE, O.ALTER}
    if operation is O.DESCRIBE_CONFIGS:
        enough |= {O.ALTER_CONFIGS}
    if any(acl.permission is M.ALLOW and acl.operation in enough for acl in mine):
        return True
    return False if on_resource else None


# Few and overlapping, so that most ACLs say something about most questions.
names = st.sampled_from(["a", "ab", "abc", "b", "bc", "*", "*a"])
principals = st.sampled_from(["User:alice", "User:bob", "User:*"])
hosts = st.sampled_from(["10.0.0.1", "10.0.0.2"])
operations = st.sampled_from([each for each in O if each > O.ANY])
kinds = st.sampled_from([T.TOPIC, T.GROUP, T.TRANSACTIONAL_ID])
acls = st.builds(
    Acl,
    kinds,
    names,
    st.sampled_from([P.LITERAL, P.PREFIXED]),
    principals,
    st.one_of(st.just("*"), hosts),
    st.one_of(st.just(O.ALL), operations),
    st.sampled_from([M.ALLOW, M.ALLOW, M.DENY]),
)
clients = st.builds(Identity, st.sampled_from(["User:alice", "User:bob"]), hosts)


@given(
    st.lists(acls, max_size=12),
    st.lists(st.tuples(clients, operations, kinds, names), max_size=12),
    st.booleans(),
)
def test_decisions_are_those_of_a_matcher_that_looks_at_every_acl(
    given_acls: list[Acl],
    questions: list[tuple[Identity, Operation, ResourceType, str]],
    allow_if_no_acl: bool,
) -> None:
    authorizer = AclAuthorizer(allow_if_no_acl=allow_if_no_acl)
    authorizer.use(AclIndex(given_acls))
    for who, operation, kind, name in [*questions, *questions]:  # and as they are remembered
        expected = oracle(given_acls, who, operation, kind, name)
        if expected is None:
            expected = allow_if_no_acl
        assert authorizer.allows(who, operation, kind, name) is expected


@given(st.lists(acls, max_size=8), clients, st.sampled_from([O.WRITE, O.READ]))
@example([], ALICE, O.WRITE)
def test_any_resource_is_one_that_is_allowed(
    given_acls: list[Acl], who: Identity, operation: Operation
) -> None:
    """Kafka's rule in terms of single decisions: allowed on a name that an ALLOW names, or, for
    prefixes, on a longer one that no DENY of a single name is about."""
    authorizer = AclAuthorizer()
    authorizer.use(AclIndex(given_acls))
    candidates = [acl.name for acl in given_acls if acl.pattern is P.LITERAL and acl.name != "*"]
    candidates += [acl.name + "~" for acl in given_acls if acl.pattern is P.PREFIXED]
    candidates.append("~")
    mine = [acl for acl in given_acls if acl.operation in (operation, O.ALL)]
    possible = any(oracle(mine, who, operation, T.TOPIC, name) for name in candidates)
    assert authorizer.allows_on_any(who, operation, T.TOPIC) is possible


def acl(name: str, permission: Permission = M.ALLOW, pattern: PatternType = P.LITERAL) -> Acl:
    return Acl(T.TOPIC, name, pattern, "User:alice", "*", O.WRITE, permission)


@pytest.mark.parametrize(
    ("given_acls", "expected"),
    [
        ([], False),
        ([acl("a")], True),
        ([acl("a"), acl("a", M.DENY)], False),
        ([acl("a"), acl("*", M.DENY)], False),
        ([acl("ab"), acl("a", M.DENY, P.PREFIXED)], False),
        ([acl("ab", pattern=P.PREFIXED), acl("a", M.DENY, P.PREFIXED)], False),
        ([acl("a", pattern=P.PREFIXED), acl("ab", M.DENY, P.PREFIXED)], True),
        ([acl("a", pattern=P.PREFIXED), acl("a", M.DENY)], True),
        ([acl("*"), acl("a", M.DENY, P.PREFIXED)], True),
    ],
)
def test_any_topic_by_kafkas_examples(given_acls: list[Acl], expected: bool) -> None:
    authorizer = AclAuthorizer()
    authorizer.use(AclIndex(given_acls))
    for _ in range(2):
        assert authorizer.allows_on_any(ALICE, O.WRITE, T.TOPIC) is expected
    assert authorizer.allows_on_any(OPERATOR, O.WRITE, T.TOPIC)


def test_super_users_and_the_brokers_own_may_do_everything() -> None:
    authorizer = AclAuthorizer(frozenset({"User:admin"}))
    deny_all = Acl(T.TOPIC, "*", P.LITERAL, "User:*", "*", O.ALL, M.DENY)
    authorizer.use(AclIndex([deny_all]))
    for who in (Identity("User:admin", "10.0.0.9"), OPERATOR, worker_identity(1)):
        assert authorizer.is_super_user(who)
        assert authorizer.allows(who, O.WRITE, T.TOPIC, "a")
        assert authorizer.allows_on_any(who, O.WRITE, T.TOPIC)
    assert not authorizer.is_super_user(ALICE)
    assert not authorizer.allows(ALICE, O.WRITE, T.TOPIC, "a")


def test_a_client_gains_nothing_from_the_name_and_host_of_the_operator() -> None:
    authorizer = AclAuthorizer()
    assert authorizer.allows(OPERATOR, O.WRITE, T.TOPIC, "a")
    pretender = Identity(OPERATOR.principal, OPERATOR.host)
    assert not authorizer.allows(pretender, O.WRITE, T.TOPIC, "a")


def test_a_change_counts_at_once() -> None:
    authorizer = AclAuthorizer()
    assert not authorizer.allows(ALICE, O.WRITE, T.TOPIC, "a")
    assert not authorizer.allows_on_any(ALICE, O.WRITE, T.TOPIC)
    authorizer.use(AclIndex([acl("a")]))
    assert authorizer.allows(ALICE, O.WRITE, T.TOPIC, "a")
    assert authorizer.allows_on_any(ALICE, O.WRITE, T.TOPIC)
    authorizer.use(AclIndex())
    assert not authorizer.allows(ALICE, O.WRITE, T.TOPIC, "a")


def test_addresses_are_compared_as_addresses() -> None:
    authorizer = AclAuthorizer()
    long = Acl(T.TOPIC, "a", P.LITERAL, "User:alice", "0:0:0:0:0:0:0:1", O.READ, M.ALLOW)
    short = Acl(T.TOPIC, "a", P.LITERAL, "User:alice", "10.0.0.7", O.READ, M.ALLOW)
    authorizer.use(AclIndex([long, short]))
    assert authorizer.allows(Identity("User:alice", "::1"), O.READ, T.TOPIC, "a")
    assert authorizer.allows(Identity("User:alice", "::ffff:10.0.0.7"), O.READ, T.TOPIC, "a")
    assert not authorizer.allows(Identity("User:alice", "10.0.0.8"), O.READ, T.TOPIC, "a")


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_authorizer, "MAX_REMEMBERED", 50)
    authorizer = AclAuthorizer()
    authorizer.use(AclIndex([acl("t7"), acl("x" * 1000)]))
    for number in range(1000):
        who = Identity("User:alice", f"10.0.{number % 256}.1")
        assert authorizer.allows(who, O.WRITE, T.TOPIC, f"t{number}") is (number == 7)
        assert authorizer.allows(who, O.WRITE, T.TOPIC, "x" * 1000)
        assert authorizer.allows_on_any(who, O.WRITE, T.TOPIC)
    held = sum(map(len, authorizer._decisions.values())) + len(authorizer._decisions_on_any)
    assert 0 < held <= 50


def test_super_users_are_separated_by_semicolons() -> None:
    assert parse_super_users(" User:a ; User:CN=b,O=c;; ") == {"User:a", "User:CN=b,O=c"}
    assert parse_super_users("") == frozenset()
    for wrong in ("alice", "User:", ":x"):
        with pytest.raises(ValueError, match="not a principal"):
            parse_super_users(wrong)
