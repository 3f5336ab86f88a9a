"""Why something is allowed or denied: the ACL that decides, or the one that nearly would."""

from __future__ import annotations

from collections.abc import Collection
from difflib import SequenceMatcher
from typing import NamedTuple

from moldau.broker.security.acl import EVERYONE, WILDCARD, Acl, canonical_host
from moldau.broker.security.acl_index import AclIndex, allows
from moldau.broker.security.resources import Operation, PatternType, Permission, ResourceType
from moldau.ops.client import ClientError, Cluster
from moldau.ops.operations.acls import Resource, acl_text, find_acls, resource_text
from moldau.ops.operations.configs import broker_configs

KEYS = ("authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found")
COMMON = (Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE,
          Operation.ALTER, Operation.DESCRIBE)  # fmt: skip
SIMILAR = 0.6  # names that are probably meant to be the same


class Question(NamedTuple):
    principal: str
    operation: Operation
    resource: ResourceType
    name: str
    host: str | None = None  # None: from somewhere no ACL names

    @property
    def text(self) -> str:
        what = resource_text(self.resource, self.name, PatternType.LITERAL)
        where = f" from {self.host}" if self.host else ""
        return f"{self.principal} {self.operation.name} on {what}{where}"


class Explanation(NamedTuple):
    is_allowed: bool
    reason: str
    by: Acl | None = None
    nearest: Acl | None = None


def explain(
    question: Question,
    acls: Collection[Acl],
    super_users: Collection[str] = (),
    *,
    allow_if_no_acl: bool = False,
) -> Explanation:
    """Decide as the broker does (Kafka's StandardAuthorizer). Pure."""
    if question.principal in super_users:
        return Explanation(True, f"{question.principal} is a super user")
    index = AclIndex(acls)
    host = canonical_host(question.host or "")
    applying = list(index.applying(question.principal, host, question.resource, question.name))
    denying = [
        acl
        for acl in applying
        if acl.permission is Permission.DENY
        and acl.operation in (question.operation, Operation.ALL)
    ]
    if denying:
        return Explanation(False, f"by {acl_text(denying[0])}", by=denying[0])
    allowing = [
        acl
        for acl in applying
        if acl.permission is Permission.ALLOW and allows(acl.operation, question.operation)
    ]
    if allowing:
        # The one that says so itself, rather than one that implies it.
        best = max(allowing, key=lambda acl: acl.operation is question.operation)
        return Explanation(True, f"by {acl_text(best)}", by=best)
    if allow_if_no_acl and not index.names(question.resource, question.name):
        return Explanation(
            True, "no ACL names it at all, and allow.everyone.if.no.acl.found is true"
        )
    return Explanation(False, "no ACL allows it", nearest=nearest(question, acls))


def nearest(question: Question, acls: Collection[Acl]) -> Acl | None:
    """The ALLOW that lacks least; None where none has anything to do with it."""
    candidates = [
        acl
        for acl in acls
        if acl.permission is Permission.ALLOW and acl.resource is question.resource
    ]
    best = max(candidates, key=lambda acl: _nearness(question, acl), default=None)
    if best is None or _nearness(question, best) < 4:
        return None
    return best


def _nearness(question: Question, acl: Acl) -> float:
    whom = 4 if acl.principal == question.principal else 3 if acl.principal == EVERYONE else 0
    what: float = 3 if _covers(acl, question.name) else 0
    if not what:
        likeness = SequenceMatcher(None, acl.name, question.name).ratio()
        what = 2 * likeness if likeness > SIMILAR else 0
    return whom + what + (2 if allows(acl.operation, question.operation) else 0)


def differences(question: Question, acl: Acl) -> list[str]:
    """The reasons why an ALLOW does not apply."""
    found = []
    if acl.principal not in (question.principal, EVERYONE):
        found.append(f"it is for {acl.principal}")
    if not _covers(acl, question.name):
        found.append(f"it is on {resource_text(acl.resource, acl.name, acl.pattern)}")
    if not allows(acl.operation, question.operation):
        found.append(f"it allows {acl.operation.name}")
    if acl.host != WILDCARD and canonical_host(acl.host) != canonical_host(question.host or ""):
        found.append(f"it is for clients at {acl.host}")
    return found


def _covers(acl: Acl, name: str) -> bool:
    if acl.pattern is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, WILDCARD)


class Explained(NamedTuple):
    operation: Operation
    answer: Explanation
    lacks: list[str]  # what keeps the nearest ACL from applying


def explain_acls(
    cluster: Cluster, principal: str, what: Resource, operation: Operation | None, host: str | None
) -> list[Explained]:
    """Explain one operation, or the common ones. Raises ClientError."""
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
