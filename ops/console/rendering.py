"""What every page has: the template, the navigation, and forms that may be refused."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ops.console.backend import Backend
from ops.console.sessions import Session

NAVIGATION = (
    ("/", "Overview"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
    ("/transactions", "Transactions"),
    ("/access", "Access"),
)


class Console:
    """The backend and the templates, as the pages use them."""

    def __init__(self, backend: Backend, environment: Environment, *, read_only: bool) -> None:
        self.backend = backend
        self.read_only = read_only
        self._environment = environment

    def page(self, request: Request, template: str, *, status: int = 200, **facts: Any) -> Response:
        is_inside = self.backend.logins is None or bool(self._user(request))
        text = self._environment.get_template(template).render(
            request=request,
            path=request.url.path,
            logged_in_as=self._user(request),
            navigation=NAVIGATION if is_inside else (),
            sees_cluster=is_inside and self.backend.sees_cluster,
            csrf=getattr(request.state, "csrf", ""),
            read_only=self.read_only,
            port=self.backend.port,
            # Not on the page where passwords are typed: links to it can say anything.
            said=request.query_params.get("said", "") if is_inside else "",
            **facts,
        )
        return HTMLResponse(text, status)

    def fragment(self, template: str, **facts: Any) -> str:
        """A part of a page, without what a request brings."""
        return self._environment.get_template(template).render(read_only=self.read_only, **facts)

    @staticmethod
    def _user(request: Request) -> str:
        """Who is logged in; empty without a login."""
        session: Session | None = getattr(request.state, "session", None)
        return "" if session is None else session.user

    def check_writable(self) -> None:
        if self.read_only:
            raise HTTPException(403, "the console is read-only")

    def done(self, where: str, said: str) -> Response:
        """After a form: to a page that says what was done. A reload does not do it again."""
        self.backend.changed()
        return RedirectResponse(_with(where, said), 303)


def _with(where: str, said: str) -> str:
    return f"{where}{'&' if '?' in where else '?'}said={quote(said)}"
