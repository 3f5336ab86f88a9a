"""Access: users, ACLs and quotas; who may do what, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moldau.broker.errors import ErrorCode
from moldau.broker.security.acl import WILDCARD, Acl
from moldau.broker.security.resources import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from moldau.ops.client import ClientError, Cluster
from moldau.ops.console.inputs import read_form
from moldau.ops.console.rendering import Console
from moldau.ops.operations.acl_explanation import Explained, explain_acls
from moldau.ops.operations.acls import (
    Resource,
    acl_text,
    create_acls,
    delete_acls,
    exactly,
    find_acls,
)
from moldau.ops.operations.quotas import (
    KEYS,
    Entity,
    alter_quotas,
    entity_text,
    find_quotas,
    parse_rate,
)
from moldau.ops.operations.users import (
    MECHANISMS,
    find_users,
    generate_password,
    remove_user,
    set_password,
)

T = TypeVar("T")

OPERATIONS = [one for one in Operation if one > Operation.ANY]
RESOURCES = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.TRANSACTIONAL_ID,
    ResourceType.CLUSTER,
)
PERMISSIONS = (Permission.ALLOW, Permission.DENY)
# Parts of a quota's entity: the field of the form, and Kafka's name.
ENTITIES = {"user": "user", "client_id": "client-id", "ip": "ip"}
DEFAULT = "<default>"  # Kafka's word for those without a quota of their own

Fields = FormData | QueryParams


class Section(NamedTuple):
    """The rows of a part of the page, or why it has none."""

    rows: list[Any]
    refusal: str = ""


def routes(console: Console) -> list[BaseRoute]:
    backend = console.backend

    async def index(request: Request) -> Response:
        asked = request.query_params
        users, acls, quotas = await backend.ask(_sections)
        explanation = Section([])
        if asked.get("principal"):
            explanation = await backend.ask(lambda cluster: _explanation(cluster, asked))
        return console.page(
            request, "access.html", title="Access", users=users, acls=acls, quotas=quotas,
            explanation=explanation, asked=asked, operations=OPERATIONS, resources=RESOURCES,
            permissions=PERMISSIONS, quota_keys=KEYS, default=DEFAULT,
        )  # fmt: skip

    async def add_user(request: Request) -> Response:
        """An existing user gets another password."""
        console.check_writable()
        form = await read_form(request)
        name, given = _text(form, "name"), str(form.get("password", ""))
        if not name:
            raise ClientError("a user needs a name")
        password = given or generate_password()
        await backend.ask(lambda cluster: set_password(cluster, name, password))
        if given:
            return console.done(request, "/access", f"user {name} has this password now")
        # Not by way of an address, which browsers remember.
        return console.page(request, "password.html", title=name, user=name, password=password)

    async def drop_user(request: Request) -> Response:
        console.check_writable()
        name = str((await read_form(request)).get("name", ""))
        await backend.ask(lambda cluster: remove_user(cluster, name))
        return console.done(request, "/access", f"user {name} was removed; its ACLs stay")

    async def add_acl(request: Request) -> Response:
        console.check_writable()
        acl = wanted_acl(await read_form(request))
        await backend.ask(lambda cluster: create_acls(cluster, [acl]))
        return console.done(request, "/access", acl_text(acl))

    async def drop_acl(request: Request) -> Response:
        console.check_writable()
        text = str((await read_form(request)).get("acl", ""))
        try:
            acl = Acl.parse(text)
        except ValueError as error:
            raise ClientError(str(error)) from None
        removed = await backend.ask(lambda cluster: delete_acls(cluster, [exactly(acl)]))
        if not removed:
            raise ClientError(
                f"there is no such ACL: {acl_text(acl)}", ErrorCode.RESOURCE_NOT_FOUND
            )
        return console.done(request, "/access", f"removed: {acl_text(acl)}")

    async def change_quota(request: Request) -> Response:
        console.check_writable()
        form = await read_form(request)
        entity, key = wanted_entity(form), _text(form, "key")
        value = None if form.get("action") == "remove" else _rate(_text(form, "value"))
        await backend.ask(lambda cluster: alter_quotas(cluster, entity, {key: value}))
        what = "none" if value is None else f"{value:.15g}"
        return console.done(request, "/access", f"{entity_text(entity)}: {key} is {what}")

    return [
        Route("/access", index),
        Route("/access/users", add_user, methods=["POST"]),
        Route("/access/users/remove", drop_user, methods=["POST"]),
        Route("/access/acls", add_acl, methods=["POST"]),
        Route("/access/acls/remove", drop_acl, methods=["POST"]),
        Route("/access/quotas", change_quota, methods=["POST"]),
    ]


# --- asking ---


def _sections(cluster: Cluster) -> tuple[Section, Section, Section]:
    return _section(cluster, _users), _section(cluster, find_acls), _section(cluster, _quotas)


def _section(cluster: Cluster, find: Callable[[Cluster], list[Any]]) -> Section:
    """One part may be refused, such as ACLs without an authorizer, and the others shown."""
    try:
        return Section(find(cluster))
    except ClientError as error:
        return Section([], cluster.worded(error))


def _users(cluster: Cluster) -> list[dict[str, Any]]:
    return [
        {"name": user, "mechanisms": [MECHANISMS.get(kind, str(kind)) for kind, _ in credentials]}
        for user, credentials in find_users(cluster).items()
    ]


def _quotas(cluster: Cluster) -> list[dict[str, Any]]:
    rows = []
    for entity, values in find_quotas(cluster, ()):
        parts = {kind: DEFAULT if name is None else name for kind, name in entity}
        fields = {field: parts.get(kind, "") for field, kind in ENTITIES.items()}
        rows += [
            {"of": entity_text(entity), "fields": fields, "key": key, "value": f"{value:.15g}"}
            for key, value in values.items()
        ]
    return rows


def _explanation(cluster: Cluster, asked: QueryParams) -> Section:
    operation = _member(Operation, asked["operation"]) if asked.get("operation") else None
    host = _text(asked, "host") or None

    def find(cluster: Cluster) -> list[Explained]:
        principal = _principal(_text(asked, "principal"))
        return explain_acls(cluster, principal, _resource(asked), operation, host)

    return _section(cluster, find)


# --- forms ---


def wanted_acl(form: Fields) -> Acl:
    """Raises ClientError."""
    kind, name = _resource(form)
    is_prefix = bool(form.get("prefixed")) and kind is not ResourceType.CLUSTER
    return Acl(
        kind,
        name,
        PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
        _principal(_text(form, "principal")),
        _text(form, "host") or WILDCARD,
        _member(Operation, _text(form, "operation")),
        _member(Permission, _text(form, "permission")),
    )


def wanted_entity(form: Fields) -> Entity:
    """Raises ClientError."""
    given = [(kind, str(form.get(field, ""))) for field, kind in ENTITIES.items()]
    entity = tuple((kind, None if name == DEFAULT else name) for kind, name in given if name)
    if not entity:
        raise ClientError(f"a quota is of a user, a client id or an address ({DEFAULT}: of all)")
    return entity


def _resource(fields: Fields) -> Resource:
    kind = _member(ResourceType, _text(fields, "resource"))
    if kind is ResourceType.CLUSTER:
        return Resource(kind, CLUSTER_NAME)
    name = str(fields.get("name", ""))
    if not name:
        raise ClientError("name the topic, group or transactional id; * is every one")
    return Resource(kind, name)


def _principal(text: str) -> str:
    """A name alone is that of a user."""
    if not text:
        raise ClientError("name a user; * is everyone")
    return text if text.startswith("User:") else f"User:{text}"


def _member(kind: type[T], name: str) -> T:
    members: dict[str, T] = kind.__members__  # type: ignore[attr-defined]
    if name not in members:
        raise ClientError(f"{name!r} is none of {', '.join(members)}")
    return members[name]


def _rate(text: str) -> float:
    try:
        return parse_rate(text)
    except ValueError as error:
        raise ClientError(str(error)) from None


def _text(fields: Fields, name: str) -> str:
    return str(fields.get(name, "")).strip()
