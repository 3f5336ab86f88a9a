"""Logging in as a user of the broker, and out."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from moldau.ops.console.inputs import read_form
from moldau.ops.console.login import LoginRefused, Logins, LoginUnavailable, TooManyLogins
from moldau.ops.console.rendering import Console
from moldau.ops.console.security import LOGIN, LOGOUT, Cookies, page_after_login
from moldau.ops.console.sessions import LOGGED_OUT, Sessions

MAX_NAME, MAX_PASSWORD = 1_000, 10_000  # characters
REFUSED = "Unknown user or wrong password."
TOO_MANY = "Too many logins at once: wait a moment, and try again."
UNAVAILABLE = "The broker does not answer: try again in a moment."


def routes(
    console: Console, logins: Logins, sessions: Sessions, cookies: Cookies
) -> list[BaseRoute]:
    def form(request: Request, after: str, problem: str = "", status: int = 200) -> Response:
        return console.page(
            request, "login.html", status=status, title="Log in", after=after, problem=problem,
            is_out="out" in request.query_params,
        )  # fmt: skip

    async def show(request: Request) -> Response:
        after = page_after_login(request.query_params.get("next", ""))
        if request.state.session is not None:
            return RedirectResponse(after, 303)
        return form(request, after)

    async def log_in(request: Request) -> Response:
        given = await read_form(request)
        user, password = str(given.get("user", "")), str(given.get("password", ""))
        after = page_after_login(str(given.get("next", "")))
        if not _is_possible(user, password):
            return form(request, after, REFUSED, 401)
        host = request.client.host if request.client is not None else "?"
        try:
            identity = await logins.check(user, password, host)
        except LoginRefused:
            return form(request, after, REFUSED, 401)
        except TooManyLogins:
            return form(request, after, TOO_MANY, 429)
        except LoginUnavailable:
            return form(request, after, UNAVAILABLE, 503)
        before = request.state.session
        if before is not None:
            sessions.end(before, LOGGED_OUT)
        # A session that was there before is never taken over: its id may be known to others.
        session = sessions.begin(identity, time.monotonic(), time.time_ns() // 1_000_000)
        response = RedirectResponse(after, 303)
        cookies.put(response, cookies.session, session.id)
        return response

    async def log_out(request: Request) -> Response:
        sessions.end(request.state.session, LOGGED_OUT)
        response = RedirectResponse(f"{LOGIN}?out", 303)
        cookies.remove(response, cookies.session)
        return response

    return [
        Route(LOGIN, show),
        Route(LOGIN, log_in, methods=["POST"]),
        Route(LOGOUT, log_out, methods=["POST"]),
    ]


def _is_possible(user: str, password: str) -> bool:
    """Reject names and passwords that no user can have without asking the broker."""
    is_short = len(user) <= MAX_NAME and len(password) <= MAX_PASSWORD
    return bool(user and password) and is_short and "\0" not in user + password
