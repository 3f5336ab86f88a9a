"""Shared by all pages: templates, navigation, and forms that may be refused."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from moldau.ops.console.backend import Backend
from moldau.ops.console.sessions import Session

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
        self._key = secrets.token_bytes(32)

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
            said=self._said(request) if is_inside else "",
            **facts,
        )
        return HTMLResponse(text, status)

    def fragment(self, template: str, **facts: Any) -> str:
        """A part of a page that depends on no request."""
        return self._environment.get_template(template).render(read_only=self.read_only, **facts)

    @staticmethod
    def _user(request: Request) -> str:
        """Who is logged in; empty without a login."""
        session: Session | None = getattr(request.state, "session", None)
        return "" if session is None else session.user

    def check_writable(self) -> None:
        if self.read_only:
            raise HTTPException(403, "the console is read-only")

    def done(self, request: Request, where: str, said: str) -> Response:
        """Redirect to a page that says what a form has done. A reload does not do it again."""
        self.backend.changed()
        query = urlencode({"said": said, "seal": self._seal(request, said)})
        return RedirectResponse(f"{where}{'&' if '?' in where else '?'}{query}", 303)

    def _said(self, request: Request) -> str:
        """What was done, if it is this console that says so to this browser: links can say
        anything."""
        said, seal = (request.query_params.get(name, "") for name in ("said", "seal"))
        is_ours = hmac.compare_digest(seal.encode(), self._seal(request, said).encode())
        return said if is_ours else ""

    def _seal(self, request: Request, said: str) -> str:
        text = f"{getattr(request.state, 'csrf', '')} {said}"
        return hmac.new(self._key, text.encode(errors="replace"), hashlib.sha256).hexdigest()

    @staticmethod
    def browser_of(request: Request) -> str:
        """Whose live views are counted together."""
        session: Session | None = request.state.session
        if session is not None:
            return f"session {session.id}"
        if request.state.browser:
            return f"browser {request.state.browser}"
        return f"address {request.client.host if request.client is not None else ''}"
