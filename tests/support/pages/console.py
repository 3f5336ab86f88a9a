"""The pages of a console without a browser: cookies, the token, and forms."""

from __future__ import annotations

import http.client
import re
import ssl
from collections.abc import Iterable
from http.cookies import SimpleCookie
from urllib.parse import urlencode

from tests.support.brokers.running import Broker

FORM = "application/x-www-form-urlencoded"


class Pages:
    """Keeps the cookies, and reads the token of a form."""

    def __init__(self, broker: Broker, login: str = "", tls: ssl.SSLContext | None = None) -> None:
        """`login`: USER:PASSWORD to log in with."""
        match = re.search(r" http=(https?)://([\d.]+):(\d+)$", broker.ready_line)
        assert match is not None
        self._address = match[2], int(match[3])
        self._tls = tls
        assert (tls is not None) == (match[1] == "https")
        self.cookies: SimpleCookie = SimpleCookie()
        self.token = ""
        if login:
            user, _, password = login.partition(":")
            status, text = self.log_in(user, password)
            assert status == 303, text

    def request(
        self, method: str, path: str, form: dict[str, str] | None = None, /, **headers: str
    ) -> tuple[int, str, http.client.HTTPMessage]:
        connection = self.connection()
        body = None if form is None else urlencode(form)
        cookie = "; ".join(f"{name}={one.value}" for name, one in self.cookies.items())
        try:
            connection.request(
                method, path, body, {"Cookie": cookie, "Content-Type": FORM} | headers
            )
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        for given in answer.headers.get_all("Set-Cookie", ()):
            assert "HttpOnly" in given
            assert "SameSite=strict" in given
            assert ("Secure" in given) == (self._tls is not None)
            self.cookies.load(given)
        if (found := re.search(r'name="csrf" value="(\w+)"', text)) is not None:
            self.token = found[1]
        return answer.status, text, answer.headers

    def connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(*self._address, timeout=60)
        return http.client.HTTPSConnection(*self._address, timeout=60, context=self._tls)

    def send(self, path: str, body: bytes | Iterable[bytes], kind: str = FORM) -> tuple[int, str]:
        """A form as it is; in chunks, without a length, if it comes in parts."""
        connection = self.connection()
        cookie = "; ".join(f"{name}={one.value}" for name, one in self.cookies.items())
        try:
            connection.request("POST", path, body, {"Cookie": cookie, "Content-Type": kind})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def get(self, path: str) -> str:
        status, text, headers = self.request("GET", path)
        assert status == 200, (status, headers.get("Location"), text)
        return text

    def post(self, path: str, **form: str) -> str:
        """Send a form; returns the page that follows it."""
        status, text, headers = self.request("POST", path, {"csrf": self.token, **form})
        if status == 303:
            return self.get(headers["Location"])
        assert status == 200, text
        return text

    def log_in(self, user: str, password: str) -> tuple[int, str]:
        self.get("/login")
        form = {"csrf": self.token, "user": user, "password": password}
        status, text, _ = self.request("POST", "/login", form)
        return status, text
