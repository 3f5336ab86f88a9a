"""The console of brokers that are set up otherwise: over TLS, behind a proxy, read-only, off."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from http.client import HTTPConnection

from tests.support.brokers.moldau_cli import OperatorCli
from tests.support.brokers.running import Broker, free_ports
from tests.support.brokers.secured import security_dir
from tests.support.pages.console import Pages
from tests.support.pages.users import ACTIONS, PASSWORD, add_user, is_serving, password_of

Start = Callable[..., Broker]


def test_the_console_is_served_over_tls(start_moldau: Start) -> None:
    broker = start_moldau(secure="true", http=f"https://0.0.0.0:{free_ports(1)}")
    is_serving(broker)
    trusting = ssl.create_default_context(cafile=str(security_dir(broker) / "ca.pem"))
    trusting.check_hostname = False  # 0.0.0.0 is not a name
    pages = Pages(broker, f"admin:{password_of(broker)}", trusting)
    assert f"__Host-moldau_session_{broker.port}" in pages.cookies
    assert "worker 0" in pages.get("/")
    assert pages.get("/livez") == "ok\n"


def test_without_tls_other_machines_get_no_login(start_moldau: Start) -> None:
    broker = start_moldau(secure="true", http=f"0.0.0.0:{free_ports(1)}")
    is_serving(broker)
    pages = Pages(broker)
    assert "--http https://HOST:PORT" in pages.get("/")
    assert pages.request("GET", "/login")[0] == 404
    assert pages.get("/livez") == "ok\n"


def test_behind_a_proxy_users_come_from_where_it_says(start_moldau: Start) -> None:
    url = "https://moldau.example"
    broker = start_moldau(secure="true", http=f"127.0.0.1:{free_ports(1)}", console_url=url)
    is_serving(broker)
    trusted = ssl.create_default_context()

    class Proxied(Pages):
        """It speaks plain HTTP to the console; the browser spoke TLS to it."""

        def connection(self) -> HTTPConnection:
            return HTTPConnection(*self._address, timeout=60)

    broker.ready_line = broker.ready_line.replace(" http=http:", " http=https:")
    add_user(broker, "far", "--operation read --topic x --host 10.0.0.7")
    OperatorCli(broker).json("topics", "create", "x")
    pages = Proxied(broker, "", trusted)
    through = {"Host": "moldau.example", "X-Forwarded-For": "10.0.0.7"}
    pages.request("GET", "/login", **through)
    form = {"csrf": pages.token, "user": "far", "password": PASSWORD}
    assert pages.request("POST", "/login", form, **through)[0] == 303
    assert pages.request("GET", "/topics/x/records", **through)[0] == 200
    assert pages.request("GET", "/topics", **{**through, "Host": "evil.example"})[0] == 403


def test_security_step_by_step(start_moldau: Start) -> None:
    """SCRAM alone, of one kind, without TLS; a second listener is the one that is advertised."""
    broker = start_moldau(
        listeners=("PLAINTEXT", "SASL_PLAINTEXT"),
        advertise="router",
        http=f"127.0.0.1:{free_ports(1)}",
        broker={
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "authorizer.class.name": "standard",
            "super.users": "User:boss",
        },
    )
    is_serving(broker)
    add_user(broker, "boss")
    pages = Pages(broker, f"boss:{PASSWORD}")
    pages.get("/topics")
    assert "made was created" in pages.post("/topics", name="made", partitions="2")
    assert "sent: partition" in pages.post("/topics/made/send", key="k", value="v")
    for group in ("a", "b", "c", "d"):  # of different owners
        status, page, _ = pages.request("GET", f"/groups/{group}")
        assert (status, "there is no such group" in page) == (404, True), page


def test_without_passwords_it_says_why_there_is_no_console(start_moldau: Start) -> None:
    broker = start_moldau(
        http=f"127.0.0.1:{free_ports(1)}", broker={"authorizer.class.name": "standard"}
    )
    is_serving(broker)
    assert "add a listener with SASL (PLAIN or SCRAM)" in Pages(broker).get("/")


def test_a_read_only_console_changes_nothing(start_moldau: Start) -> None:
    broker = start_moldau(secure="true", http=f"127.0.0.1:{free_ports(1)}", console="read-only")
    is_serving(broker)
    pages = Pages(broker, f"admin:{password_of(broker)}")
    page = pages.get("/topics")
    assert ">read-only<" in page
    assert 'action="/topics"' not in page
    for path, form, _ in ACTIONS:
        status, text, _ = pages.request("POST", path, {"csrf": pages.token, **form})
        assert (status, text) == (403, "the console is read-only: it changes nothing"), path
    assert "You have logged out." in pages.post("/logout")
