"""Protects the console's pages: sessions, headers, and tokens for every form.

A form carries a token that is bound to the browser's cookie and to the session, so that no other
site can send one (CSRF). The cookies are SameSite=Strict as well. There is no inline script or
style, and nothing is loaded from anywhere else; the Content-Security-Policy says so to the browser.

Where clients of the broker log in, so do browsers: without a session there is the login page, and
nothing else. Whoever looks at a page is in `backend.visitor` while it is made.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from moldau.ops.console.backend import visitor
from moldau.ops.console.inputs import MAX_FORM_BYTES, parse_number, read_form
from moldau.ops.console.sessions import Session, Sessions

TOKEN_FIELD = "csrf"
TOKEN_HEADER = "x-csrf-token"
MAX_LOGIN_BYTES = 64 << 10  # anyone can send as much
LOGIN, LOGOUT, STATIC = "/login", "/logout", "/static/"
READ_ONLY = "the console is read-only: it changes nothing"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Refusal(NamedTuple):
    text: str
    status: int


NOT_OURS = Refusal("the form was not made by this console, or is too old: load its page again", 403)


class Cookies:
    """Their names and flags. Browsers send cookies to every port of a host, so names tell consoles
    apart; with TLS no other service of the host can set them (__Host-)."""

    def __init__(self, port: int, *, is_secure: bool) -> None:
        """`port`: the broker's. `is_secure`: browsers reach the console over TLS only."""
        prefix = "__Host-" if is_secure else ""
        self.browser = f"{prefix}moldau_console_{port}"
        self.session = f"{prefix}moldau_session_{port}"
        self._is_secure = is_secure

    def put(self, response: Response, name: str, value: str) -> None:
        response.set_cookie(
            name, value, path="/", secure=self._is_secure, httponly=True, samesite="strict"
        )

    def remove(self, response: Response, name: str) -> None:
        response.delete_cookie(
            name, path="/", secure=self._is_secure, httponly=True, samesite="strict"
        )


class Protection(BaseHTTPMiddleware):
    """Refuses requests that come from no page of ours, and adds headers to answers."""

    def __init__(
        self,
        app: object,
        hosts: frozenset[str],
        cookies: Cookies,
        sessions: Sessions | None,
        read_only: bool,
    ) -> None:
        """`sessions`: None where there are no logins."""
        super().__init__(app)  # type: ignore[arg-type]
        self._hosts = hosts
        self._cookies = cookies
        self._sessions = sessions
        self._read_only = read_only
        self._key = secrets.token_bytes(32)

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        browser = request.cookies.get(self._cookies.browser, "")
        is_new = not browser
        browser = browser or secrets.token_urlsafe(16)
        session = self._session(request)
        request.state.session = session
        request.state.browser = "" if is_new else browser
        request.state.csrf = self._token(browser, session)
        response: Response
        if refusal := self._refusal(request):
            response = PlainTextResponse(*refusal)
        elif session is None and self._needs_session(request):
            response = to_login(request)
        elif request.method not in _SAFE and (fault := await self._fault(request, is_new)):
            response = PlainTextResponse(*fault)
        else:
            token = visitor.set(session)
            try:
                response = await call_next(request)
            finally:
                visitor.reset(token)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if is_new:
            self._cookies.put(response, self._cookies.browser, browser)
        return response

    def _session(self, request: Request) -> Session | None:
        given = request.cookies.get(self._cookies.session, "")
        if self._sessions is None or not given:
            return None
        return self._sessions.find(given, time.monotonic(), is_use=not is_by_itself(request))

    def _needs_session(self, request: Request) -> bool:
        path = request.url.path
        return self._sessions is not None and path != LOGIN and not path.startswith(STATIC)

    def _refusal(self, request: Request) -> Refusal | None:
        # Another site may point its own name at this address (DNS rebinding).
        if self._hosts and request.url.hostname not in self._hosts:
            return Refusal(f"this host name is not served: {request.url.hostname}", 403)
        if request.method in _SAFE:
            return None
        length = request.headers.get("content-length", "")
        most = MAX_LOGIN_BYTES if request.url.path == LOGIN else MAX_FORM_BYTES
        if not length:
            return Refusal("a form must say its length (content-length)", 411)
        if parse_number(length, most) is None:
            return Refusal(f"the form is too large: {most} bytes are the most", 413)
        if self._read_only and request.url.path not in (LOGIN, LOGOUT):
            return Refusal(READ_ONLY, 403)
        return None

    async def _fault(self, request: Request, is_new: bool) -> Refusal | None:
        """None: the form comes from a page that was made for this browser."""
        if is_new:
            return NOT_OURS
        given = request.headers.get(TOKEN_HEADER)
        if given is None:
            try:
                await request.body()  # kept by Starlette: the page reads the form again
                given = str((await read_form(request)).get(TOKEN_FIELD, ""))
            except ClientDisconnect:
                return Refusal("the form did not arrive", 400)
            except HTTPException as fault:
                return Refusal(fault.detail, fault.status_code)
        is_ours = hmac.compare_digest(given.encode(), request.state.csrf.encode())
        return None if is_ours else NOT_OURS

    def _token(self, browser: str, session: Session | None) -> str:
        bound_to = f"{browser} {'' if session is None else session.id}"
        return hmac.new(self._key, bound_to.encode(), hashlib.sha256).hexdigest()


def is_by_itself(request: Request) -> bool:
    """Whether a live page asks, and not a person."""
    headers = request.headers
    return "hx-request" in headers or "text/event-stream" in headers.get("accept", "")


def to_login(request: Request) -> Response:
    """Redirect to the login, and from there back to the page that was asked for."""
    if "hx-request" in request.headers:
        page = urlsplit(request.headers.get("hx-current-url", ""))
        where = login_url(f"{page.path}?{page.query}" if page.query else page.path)
        return PlainTextResponse("log in first\n", 401, {"HX-Redirect": where})
    if "text/event-stream" in request.headers.get("accept", ""):
        return PlainTextResponse("log in first\n", 401)
    if request.method not in _SAFE:
        return RedirectResponse(LOGIN, 303)
    url = request.url
    return RedirectResponse(login_url(f"{url.path}?{url.query}" if url.query else url.path), 303)


def login_url(after: str) -> str:
    after = page_after_login(after)
    return LOGIN if after == "/" else f"{LOGIN}?next={quote(after, safe='')}"


def page_after_login(given: str) -> str:
    """A page of this console, whatever a link to the login says."""
    # Browsers take \ for /, and leave out tabs and line breaks: // and /\\ lead to other hosts.
    is_path = given.startswith("/") and not given.startswith(("//", "/\\"))
    is_plain = all(" " < each != "\x7f" for each in given)
    is_login = given.partition("?")[0] in (LOGIN, LOGOUT)
    return given if is_path and is_plain and not is_login else "/"
