"""The pages of a console without a browser: the cookie, the token, and forms."""

from __future__ import annotations

import base64
import http.client
import re
from urllib.parse import urlencode

from tests.support.running import Broker


class Pages:
    """Keeps the cookie, and reads the token of a form."""

    def __init__(self, broker: Broker, login: str = "") -> None:
        match = re.search(r" http=http://([\d.]+):(\d+)$", broker.ready_line)
        assert match is not None
        self._address = match[1], int(match[2])
        self._cookie = ""
        self._login: dict[str, str] = {}
        if login:
            self._login["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        self.token = ""

    def request(
        self, method: str, path: str, form: dict[str, str] | None = None, **headers: str
    ) -> tuple[int, str, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection(*self._address, timeout=60)
        body = None if form is None else urlencode(form)
        try:
            connection.request(
                method,
                path,
                body,
                {"Cookie": self._cookie, "Content-Type": "application/x-www-form-urlencoded"}
                | self._login
                | headers,
            )
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if (cookie := answer.headers.get("Set-Cookie")) is not None:
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
            self._cookie = cookie.partition(";")[0]
        if (found := re.search(r'name="csrf" value="(\w+)"', text)) is not None:
            self.token = found[1]
        return answer.status, text, answer.headers

    def get(self, path: str) -> str:
        status, text, _ = self.request("GET", path)
        assert status == 200, text
        return text

    def post(self, path: str, **form: str) -> str:
        """Send a form; returns the page that follows it."""
        status, text, headers = self.request("POST", path, {"csrf": self.token, **form})
        if status == 303:
            return self.get(headers["Location"])
        assert status == 200, text
        return text
