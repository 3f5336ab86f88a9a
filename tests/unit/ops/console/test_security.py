"""Where a login leads, and what cookies are like."""

from __future__ import annotations

import pytest
from starlette.responses import Response

from moldau.ops.console.security import Cookies, login_url, page_after_login


@pytest.mark.parametrize(
    "page", ["/", "/topics", "/topics?q=a&page=2", "/groups/a%2Fb/film", "/a//b", "/loginx"]
)
def test_a_login_leads_back_to_the_page(page: str) -> None:
    assert page_after_login(page) == page


@pytest.mark.parametrize(
    "elsewhere",
    [
        "",
        "topics",
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/\t/evil.example",
        "/\n/evil.example",
        " //evil.example",
        "javascript:alert(1)",
        "/login?next=/",
        "/logout",
    ],
)
def test_a_login_leads_nowhere_else(elsewhere: str) -> None:
    assert page_after_login(elsewhere) == "/"
    assert login_url(elsewhere) == "/login"


def test_the_page_is_one_parameter() -> None:
    assert login_url("/topics?q=a&said=b") == "/login?next=%2Ftopics%3Fq%3Da%26said%3Db"


@pytest.mark.parametrize("is_secure", [False, True])
def test_cookies_are_for_this_console_alone(is_secure: bool) -> None:
    cookies, response = Cookies(9092, is_secure=is_secure), Response()
    cookies.put(response, cookies.session, "secret")
    (header,) = response.headers.getlist("set-cookie")
    name, *flags = header.lower().split("; ")
    prefix = "__host-" if is_secure else ""
    assert name == f"{prefix}moldau_session_9092=secret"
    assert {"httponly", "samesite=strict", "path=/"} <= set(flags)
    assert ("secure" in flags) == is_secure
    assert not any(flag.startswith(("domain", "max-age", "expires")) for flag in flags)
    assert Cookies(19092, is_secure=is_secure).session != cookies.session
