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

from ops.client import ClientError
from ops.console import formats
from ops.console.backend import Backend
from ops.console.pages import access, adopt, groups, overview, records, topics, transactions
from ops.console.rendering import Console
from ops.console.security import Protection

NOT_FOUND = 404
HERE = Path(__file__).parent


def create_app(
    backend: Backend,
    *,
    hosts: frozenset[str] = frozenset(),
    login: str = "",
    read_only: bool = False,
) -> Starlette:
    """`hosts`: the names it answers to; empty: any. `login`: USER:PASSWORD; empty: none."""
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
        "hue": formats.colour_of,
    }
    environment.globals["sparkline"] = formats.sparkline
    console = Console(backend, environment, read_only=read_only)
    routes = [
        *overview.routes(console),
        *topics.routes(console),
        *adopt.routes(console),
        *records.routes(console),
        *groups.routes(console),
        *transactions.routes(console),
        *access.routes(console),
        Mount("/static", StaticFiles(directory=HERE / "static"), name="static"),
    ]

    async def refused(request: Request, error: Exception) -> Response:
        return console.page(request, "error.html", status=502, title="Not done", text=str(error))

    async def wrong(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        title = "Not found" if error.status_code == NOT_FOUND else "Refused"
        return console.page(
            request, "error.html", status=error.status_code, title=title, text=error.detail
        )

    return Starlette(
        routes=routes,
        middleware=[Middleware(Protection, hosts=hosts, login=login)],
        exception_handlers={ClientError: refused, HTTPException: wrong},
    )
