"""What keeps the console's pages safe: a login, headers, and tokens for every form.

A form carries a token that is bound to the browser's cookie, so no other site can send one
(CSRF). The cookie is SameSite=Strict as well. There is no inline script or style, and nothing is
loaded from anywhere else; the Content-Security-Policy says so to the browser.

Where clients of the broker log in, so do browsers (HTTP Basic, on loopback): the console acts as
the operator, and every user of the machine can reach a loopback address.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

COOKIE = "moldau_console"
TOKEN_FIELD = "csrf"
TOKEN_HEADER = "x-csrf-token"
MAX_FORM_BYTES = 8 << 20
CHALLENGE = 'Basic realm="Moldau", charset="UTF-8"'
LOG_IN = "log in as admin, with the password in DATA_DIR/security/client.properties\n"
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


class Protection(BaseHTTPMiddleware):
    """Refuses what is not from a page of ours, and adds the headers."""

    def __init__(self, app: object, hosts: frozenset[str], login: str) -> None:
        super().__init__(app)  # type: ignore[arg-type]
        self._hosts = hosts
        self._login = b"Basic " + base64.b64encode(login.encode()) if login else None
        self._key = secrets.token_bytes(32)

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        is_logged_in = self._is_logged_in(request)
        refusal = await self._refusal(request) if is_logged_in else None
        browser = request.cookies.get(COOKIE) or secrets.token_urlsafe(16)
        request.state.csrf = self._token(browser)
        response: Response
        if not is_logged_in:
            response = PlainTextResponse(LOG_IN, 401, {"WWW-Authenticate": CHALLENGE})
        elif refusal is not None:
            response = PlainTextResponse(refusal, 403)
        else:
            response = await call_next(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if COOKIE not in request.cookies:
            response.set_cookie(COOKIE, browser, httponly=True, samesite="strict", path="/")
        return response

    def _is_logged_in(self, request: Request) -> bool:
        if self._login is None:
            return True
        given = request.headers.get("authorization", "").encode()
        return hmac.compare_digest(given, self._login)

    async def _refusal(self, request: Request) -> str | None:
        # Another site may point its own name at this address (DNS rebinding).
        if self._hosts and request.url.hostname not in self._hosts:
            return f"this host name is not served: {request.url.hostname}"
        if request.method in _SAFE:
            return None
        length = request.headers.get("content-length", "")
        if not length.isdigit() or int(length) > MAX_FORM_BYTES:
            return "the form is too large"
        browser = request.cookies.get(COOKIE, "")
        given = request.headers.get(TOKEN_HEADER)
        if given is None:
            await request.body()  # kept by Starlette: the page reads the form again
            given = str((await request.form()).get(TOKEN_FIELD, ""))
        if not browser or not hmac.compare_digest(given, self._token(browser)):
            return "the form was not made by this console, or is too old: load its page again"
        return None

    def _token(self, browser: str) -> str:
        return hmac.new(self._key, browser.encode(), hashlib.sha256).hexdigest()
