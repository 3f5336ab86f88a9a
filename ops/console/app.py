"""The console as an ASGI application: its routes, templates and errors."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from moldau.broker.errors import ErrorCode
from moldau.ops.client import RETRIABLE, ClientError, Unreachable
from moldau.ops.console import formats
from moldau.ops.console.backend import Backend
from moldau.ops.console.pages import (
    access,
    adopt,
    groups,
    live_records,
    login,
    overview,
    records,
    send_record,
    topics,
    transactions,
)
from moldau.ops.console.rendering import Console
from moldau.ops.console.security import Cookies, Protection, to_login
from moldau.ops.console.sessions import Sessions
from moldau.ops.console.user_cluster import NotAllowed, SessionOver

NOT_FOUND = 404
NOT_THERE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
    }
)
CONFLICTS = frozenset(
    {ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NON_EMPTY_GROUP, ErrorCode.CONCURRENT_TRANSACTIONS}
)
HERE = Path(__file__).parent


def create_app(
    backend: Backend,
    sessions: Sessions,
    *,
    hosts: frozenset[str] = frozenset(),
    is_secure: bool = False,
    read_only: bool = False,
) -> Starlette:
    """`hosts`: the names it answers to; empty: any. `is_secure`: it is reached over TLS only.
    `sessions` are used where users log in (`backend.logins`)."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": formats.size_text,
        "count": formats.count_text,
        "rate": formats.rate_text,
        "duration": formats.duration_text,
        "time": formats.time_text,
    }
    environment.globals["sparkline"] = formats.sparkline
    console = Console(backend, environment, read_only=read_only)
    cookies = Cookies(backend.port, is_secure=is_secure)
    logins = backend.logins
    routes = [
        *(login.routes(console, logins, sessions, cookies) if logins is not None else ()),
        *overview.routes(console),
        *topics.routes(console),
        *adopt.routes(console),
        *records.routes(console),
        *live_records.routes(console),
        *send_record.routes(console),
        *groups.routes(console),
        *transactions.routes(console),
        *access.routes(console),
        Mount("/static", StaticFiles(directory=HERE / "static"), name="static"),
    ]

    async def not_allowed(request: Request, error: Exception) -> Response:
        return console.page(request, "error.html", status=403, title="Not allowed", text=str(error))

    async def session_over(request: Request, error: Exception) -> Response:
        return to_login(request)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, ClientError)
        status = status_of(error)
        title = "Not found" if status == NOT_FOUND else "Not done"
        return console.page(request, "error.html", status=status, title=title, text=str(error))

    async def wrong(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        title = "Not found" if error.status_code == NOT_FOUND else "Refused"
        return console.page(
            request, "error.html", status=error.status_code, title=title, text=error.detail
        )

    return Starlette(
        routes=routes,
        middleware=[
            Middleware(
                Protection,
                hosts=hosts,
                cookies=cookies,
                sessions=sessions if logins is not None else None,
                read_only=read_only,
            )
        ],
        exception_handlers={
            SessionOver: session_over,
            NotAllowed: not_allowed,
            ClientError: refused,
            HTTPException: wrong,
        },
    )


def status_of(error: ClientError) -> int:
    """502 if the broker does not answer; else the request is wrong."""
    if isinstance(error, Unreachable):
        return 502
    if error.code in NOT_THERE:
        return 404
    if error.code in CONFLICTS:
        return 409
    if error.code in RETRIABLE or error.code == ErrorCode.UNKNOWN_SERVER_ERROR:
        return 502
    return 400
