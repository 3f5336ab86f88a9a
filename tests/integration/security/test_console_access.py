"""Users, ACLs and quotas in the console of a broker that has all three."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.brokers.moldau_cli import OperatorCli
from tests.support.brokers.running import Broker, free_ports, running_broker, wait_until
from tests.support.brokers.secured import librdkafka_settings
from tests.support.pages.console import Pages


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    address = f"127.0.0.1:{free_ports(1)}"
    with running_broker(workers=2, secure="true", http=address) as started:
        wait_until(lambda: started.processes("http")[0]["state"] == "running", 60, "it serves")
        yield started


@pytest.fixture
def pages(broker: Broker) -> Pages:
    made = Pages(broker, "admin:" + librdkafka_settings(broker)["sasl.password"])
    made.get("/access")
    return made


@pytest.fixture(scope="module")
def operator(broker: Broker) -> OperatorCli:
    return OperatorCli(broker)


def test_a_user_gets_a_password_that_is_shown_once(
    pages: Pages, broker: Broker, operator: OperatorCli
) -> None:
    page = pages.post("/access/users", name="made", password="")
    shown = re.search(r"<code>([\w-]+)</code>", page)
    assert shown is not None
    settings = librdkafka_settings(broker, sasl_username="made", sasl_password=shown[1])
    AdminClient({**settings}).list_topics(timeout=30)
    assert shown[1] not in pages.get("/access")
    page = pages.post("/access/users/remove", name="made")
    assert "user made was removed" in page
    assert "made" not in {one["user"] for one in operator.json("users", "list")["users"]}
    status, text, _ = pages.request(
        "POST", "/access/users/remove", {"csrf": pages.token, "name": "made"}
    )
    assert (status, "there is no user made" in text) == (404, True)


def test_an_acl_is_added_explained_and_removed(pages: Pages, operator: OperatorCli) -> None:
    ask = "/access?principal=alice&operation=READ&resource=TOPIC&name=orders-eu"
    assert "no ACL allows it" in pages.get(ask)
    form = {"principal": "alice", "permission": "ALLOW", "operation": "READ", "host": ""}
    page = pages.post("/access/acls", **form, resource="TOPIC", name="orders-", prefixed="1")
    assert "ALLOW READ on topics orders-* for User:alice" in page
    (made,) = operator.json("acls", "list", "--user", "alice")["acls"]
    assert (made["pattern"], made["resource"]) == ("PREFIXED", "orders-")
    assert ">allowed<" in pages.get(ask)
    page = pages.get(ask.replace("READ", "WRITE"))
    assert ">denied<" in page
    assert "it allows READ" in page
    pages.post("/access/acls/remove", acl="ALLOW User:alice READ TOPIC PREFIXED orders- *")
    assert operator.json("acls", "list", "--user", "alice")["acls"] == []


def test_a_quota_is_set_and_removed(pages: Pages, operator: OperatorCli) -> None:
    of = {"user": "alice", "client_id": "<default>", "ip": "", "key": "producer_byte_rate"}
    page = pages.post("/access/quotas", **of, value="10mb")
    assert "10485760" in page
    (quota,) = operator.json("quotas", "list")["quotas"]
    assert quota["entity"] == {"user": "alice", "client-id": None}
    pages.post("/access/quotas", **of, action="remove")
    assert operator.json("quotas", "list")["quotas"] == []


@pytest.mark.parametrize(
    ("path", "form", "reason"),
    [
        ("/access/users", {"name": " "}, "needs a name"),
        ("/access/acls", {"principal": "x", "resource": "MOON"}, "is none of"),
        ("/access/acls", {"principal": "x", "resource": "TOPIC", "name": ""}, "name the topic"),
        ("/access/acls/remove", {"acl": "nonsense"}, "not an ACL"),
        ("/access/quotas", {"key": "producer_byte_rate", "value": "1"}, "a quota is of"),
        ("/access/quotas", {"user": "x", "key": "producer_byte_rate", "value": "-1"}, "above 0"),
    ],
)
def test_forms_that_cannot_be_are_refused(
    pages: Pages, path: str, form: dict[str, str], reason: str
) -> None:
    status, text, _ = pages.request("POST", path, {"csrf": pages.token, **form})
    assert (status, reason in text) == (400, True), text
    assert pages.request("POST", path, form)[0] == 403  # without the token
