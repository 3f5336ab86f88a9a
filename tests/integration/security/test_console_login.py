"""Users of the broker in its console: they log in, and see and do what their ACLs allow."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.brokers.moldau_cli import OperatorCli
from tests.support.brokers.running import Broker, free_ports, running_broker, wait_until
from tests.support.brokers.secured import librdkafka_settings
from tests.support.pages.console import Pages
from tests.support.pages.users import ACTIONS, PASSWORD, add_user, is_serving, password_of

REFUSED = "Unknown user or wrong password."


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    address = f"127.0.0.1:{free_ports(1)}"
    with running_broker(
        workers=2,
        secure="true",
        http=address,
        broker={"group.initial.rebalance.delay.ms": 10, "auto.create.topics.enable": "false"},
    ) as started:
        is_serving(started)
        fill(started)
        yield started


def fill(broker: Broker) -> None:
    """Topics and groups that users may see or not."""
    settings: dict[str, Any] = {**librdkafka_settings(broker)}
    admin = AdminClient(settings)
    for future in admin.create_topics(
        [NewTopic(name, 2) for name in ("open-topic", "secret-topic")]
    ).values():
        future.result(30)
    producer = Producer(settings)
    for topic in ("open-topic", "secret-topic"):
        producer.produce(topic, f"{topic}-value", f"{topic}-key")
    assert producer.flush(30) == 0
    for group, topics in (
        ("open-group", ["open-topic", "secret-topic"]),
        ("secret-group", ["secret-topic"]),
    ):
        consumer = Consumer(
            {
                **settings,
                "group.id": group,
                "client.id": f"{group}-client",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(topics)
        for _ in topics:
            assert consumer.poll(60) is not None
        consumer.commit(asynchronous=False)
        consumer.close()
    add_user(broker, "nothing")
    add_user(broker, "reader", "--operation read --topic open-topic")
    add_user(
        broker,
        "consumer",
        "--operation read --topic open-topic",
        "--operation describe --group open-group",
    )


# --- what users see ------------------------------------------------------------------------------

SHOWN = ("open-topic", "secret-topic", "open-group", "secret-group")
LISTS = ("/", "/?live=1", "/topics", "/topics?q=e", "/groups", "/groups?q=e", "/transactions")
ONE = (
    "/topics/open-topic",
    "/topics/open-topic/records",
    "/topics/open-topic/records?from=beginning&filter=value",
    "/topics/open-topic/send?partition=0&again=0",
)
OF_GROUP = ("/groups/open-group", "/groups/open-group?live=1", "/groups/open-group/film?since=1h")
SECRET = (
    "/topics/secret-topic",
    "/topics/secret-topic/records",
    "/topics/secret-topic/send?partition=0&again=0",
    "/groups/secret-group",
    "/groups/secret-group/film?since=7d",
    "/groups/never-was/film?since=7d",
    "/transactions/never-was",
)


def names_in(page: str, address: str) -> set[str]:
    """The names of the broker in a page, but for those that were asked for."""
    return {name for name in SHOWN if name in page and name not in address}


@pytest.mark.parametrize("path", LISTS)
def test_who_has_no_acls_sees_nothing(broker: Broker, path: str) -> None:
    page = Pages(broker, f"nothing:{PASSWORD}").get(path)
    assert names_in(page, path) == set()
    assert "worker 0" not in page
    assert "-client" not in page


@pytest.mark.parametrize("path", [*ONE, *OF_GROUP, *SECRET])
def test_who_has_no_acls_is_told_what_is_missing(broker: Broker, path: str) -> None:
    """Whether it exists or not is not said."""
    pages = Pages(broker, f"nothing:{PASSWORD}")
    status, page, _ = pages.request("GET", path)
    assert status == 403, page
    assert "nothing needs DESCRIBE on " in page
    assert names_in(page, path) == set()
    assert "-value" not in page


def test_a_reader_sees_one_topic(broker: Broker) -> None:
    pages = Pages(broker, f"reader:{PASSWORD}")
    for path in LISTS:
        assert names_in(pages.get(path), path) <= {"open-topic"}, path
    assert names_in(pages.get("/topics"), "") == {"open-topic"}
    for path in ONE:
        page = pages.get(path)
        assert names_in(page, path) == set(), path
        assert "secret" not in page
    assert "open-topic-value" in pages.get("/topics/open-topic/records")
    assert "needs DESCRIBE_CONFIGS on topic open-topic" in pages.get("/topics/open-topic")
    for path in (*OF_GROUP, *SECRET):
        assert pages.request("GET", path)[0] == 403, path


def test_who_may_describe_a_group_sees_its_offsets_of_visible_topics(broker: Broker) -> None:
    pages = Pages(broker, f"consumer:{PASSWORD}")
    assert names_in(pages.get("/groups"), "") == {"open-group", "open-topic"}
    assert names_in(pages.get("/topics/open-topic"), "") == {"open-group", "open-topic"}
    for path in OF_GROUP:
        assert "secret" not in pages.get(path), path
    film = pages.get("/groups/open-group/film?since=1h")
    assert "open-group-client" in film
    assert "open-topic-0" in film


def test_the_administrator_sees_everything(broker: Broker) -> None:
    pages = Pages(broker, f"admin:{password_of(broker)}")
    assert "worker 0" in pages.get("/")
    assert names_in(pages.get("/topics"), "") == set(SHOWN)
    assert names_in(pages.get("/groups"), "") == set(SHOWN)
    for path in (*ONE, *OF_GROUP, *SECRET[:5]):
        pages.get(path)
    assert "secret-topic-0" in pages.get("/groups/open-group/film?since=1h")


# --- what users do -------------------------------------------------------------------------------


def state_of(broker: Broker) -> list[Any]:
    operator = OperatorCli(broker)
    return [
        operator.json("topics", "describe", "secret-topic"),
        operator.json("topics", "list"),
        operator.json("groups", "describe", "secret-group"),
        operator.json("users", "list"),
        operator.json("acls", "list"),
        operator.json("quotas", "list"),
    ]


def test_who_has_no_acls_can_do_nothing_and_is_told_why(broker: Broker) -> None:
    before = state_of(broker)
    pages = Pages(broker, f"nothing:{PASSWORD}")
    pages.get("/topics")
    for path, form, missing in ACTIONS:
        status, page, _ = pages.request("POST", path, {"csrf": pages.token, **form})
        assert (status, f"nothing needs {missing}." in page) == (403, True), (path, page)
        assert "moldau acls add --user nothing --operation" in page
    assert state_of(broker) == before


def test_every_action_is_in_the_table(broker: Broker) -> None:
    """A new form needs a row above."""
    from moldau.ops.console.app import create_app
    from moldau.ops.console.backend import Backend
    from moldau.ops.console.sessions import Sessions

    async def snapshot() -> Any:
        raise AssertionError

    app = create_app(Backend(1, snapshot, lambda: None), Sessions())
    posted = {
        str(route.path)  # type: ignore[attr-defined]
        for route in app.routes
        if "POST" in (getattr(route, "methods", None) or ())
    }
    tried = {
        path.replace("secret-topic", "{topic}").replace("secret-group", "{group:path}")
        for path, _, _ in ACTIONS
    }
    assert posted == tried


def test_one_right_is_one_right(broker: Broker) -> None:
    add_user(broker, "writer", "--operation write --topic open-topic")
    pages = Pages(broker, f"writer:{PASSWORD}")
    pages.get("/topics/open-topic/send")
    form = {"csrf": pages.token, "key": "k", "value": "by writer"}
    status, page, headers = pages.request("POST", "/topics/open-topic/send", form)
    assert status == 303, page
    status, page, _ = pages.request("GET", headers["Location"])
    assert (status, "writer needs READ on " in page) == (403, True)
    assert "by writer" in Pages(broker, f"reader:{PASSWORD}").get("/topics/open-topic/records")


def test_what_acls_change_counts_at_once(broker: Broker) -> None:
    add_user(broker, "changing")
    pages = Pages(broker, f"changing:{PASSWORD}")
    assert pages.request("GET", "/topics/open-topic/records")[0] == 403
    operator = OperatorCli(broker)
    acl = ["--user", "changing", "--operation", "read", "--topic", "open-topic"]
    operator.json("acls", "add", *acl)
    assert "open-topic-value" in pages.get("/topics/open-topic/records")
    wait_until(lambda: "open-topic" in pages.get("/topics"), 30, "it is listed")
    operator.json("acls", "remove", *acl, "--yes")
    assert pages.request("GET", "/topics/open-topic/records")[0] == 403
    wait_until(lambda: "open-topic" not in pages.get("/topics"), 30, "it is listed no more")


# --- logging in and out --------------------------------------------------------------------------


def test_without_a_login_there_are_metrics_health_and_the_login_page(broker: Broker) -> None:
    stranger = Pages(broker)
    for path in ("/", "/access", "/topics/open-topic/records"):
        status, page, headers = stranger.request("GET", path)
        assert (status, page) == (303, "")
        assert headers["Location"].startswith("/login")
    assert stranger.request("GET", "/topics?q=x")[2]["Location"] == "/login?next=%2Ftopics%3Fq%3Dx"
    assert "kafka_brokers 2" in stranger.get("/metrics")
    assert stranger.get("/livez") == "ok\n"
    page = stranger.get("/login?said=Call+0900-12345")
    assert "0900" not in page
    assert "Topics" not in page
    form = {"csrf": stranger.token, "name": "x"}
    assert stranger.request("POST", "/topics", form)[0] == 303
    names = {each["name"] for each in OperatorCli(broker).json("topics", "list")["topics"]}
    assert "x" not in names
    live = {"HX-Request": "true", "HX-Current-URL": "http://x/groups/g?a=b"}
    status, _, headers = stranger.request("GET", "/groups/g?live=1", **live)
    assert (status, headers["HX-Redirect"]) == (401, "/login?next=%2Fgroups%2Fg%3Fa%3Db")
    stream = {"Accept": "text/event-stream"}
    assert stranger.request("GET", "/topics/open-topic/live", **stream)[0] == 401


def test_unknown_users_and_wrong_passwords_get_the_same_answer(broker: Broker) -> None:
    pages = Pages(broker)
    answers = {
        pages.log_in(user, password)[1].replace(pages.token, "")
        for user, password in (
            ("admin", "wrong"),
            ("no-such-user", "wrong"),
            ("reader", ""),
            ("", PASSWORD),
            ("reader\0", PASSWORD),
            ("reader", PASSWORD + " "),
        )
    }
    (answer,) = answers
    assert REFUSED in answer
    assert pages.request("GET", "/topics")[0] == 303


def test_a_login_needs_its_own_form(broker: Broker) -> None:
    """Nobody can be logged in as someone else by another site."""
    pages = Pages(broker)
    form = {"user": "reader", "password": PASSWORD}
    assert pages.request("POST", "/login", form)[0] == 403  # no cookie yet
    pages.get("/login")
    assert pages.request("POST", "/login", form)[0] == 403
    others = Pages(broker)
    others.get("/login")
    assert pages.request("POST", "/login", form | {"csrf": others.token})[0] == 403
    large = form | {"csrf": pages.token, "next": "/" * 100_000}
    status, text, _ = pages.request("POST", "/login", large)
    assert (status, "the form is too large" in text) == (413, True)
    assert pages.send("/login", iter([urlencode(form).encode()]))[0] == 411
    assert pages.request("POST", "/login", form | {"csrf": pages.token})[0] == 303


def test_a_login_begins_a_new_session_and_leads_nowhere_else(broker: Broker) -> None:
    pages = Pages(broker)
    name = f"moldau_session_{broker.port}"
    pages.get("/login")
    pages.cookies[name] = "planted"
    form = {"csrf": pages.token, "user": "reader", "password": PASSWORD}
    _, _, headers = pages.request("POST", "/login", form | {"next": "//evil.example"})
    assert headers["Location"] == "/"
    first = pages.cookies[name].value
    assert first != "planted"
    pages.get("/topics")
    before = pages.token
    _, _, headers = pages.request("POST", "/login", form | {"csrf": before, "next": "/topics?q=a"})
    assert headers["Location"] == "/topics?q=a"
    second = pages.cookies[name].value
    assert second != first
    stolen = Pages(broker)
    stolen.cookies[name] = first
    assert stolen.request("GET", "/topics")[0] == 303  # it has ended
    # The token of one session is not that of another.
    assert pages.request("POST", "/logout", {"csrf": before})[0] == 403
    pages.get("/topics")
    assert pages.token != before


def test_who_logs_out_is_out(broker: Broker) -> None:
    pages = Pages(broker, f"reader:{PASSWORD}")
    page = pages.get("/topics")
    assert "reader" in page
    copied = Pages(broker)
    copied.cookies.load(pages.cookies.output(header="", sep=";"))
    assert pages.request("GET", "/logout")[0] == 405
    assert "You have logged out." in pages.post("/logout")
    for each in (pages, copied):
        assert each.request("GET", "/topics")[0] == 303


@pytest.mark.parametrize("change", ["removed", "password"])
def test_a_user_that_is_removed_or_has_another_password_is_out(broker: Broker, change: str) -> None:
    name = f"leaving-{change}"
    add_user(broker, name, "--operation read --topic open-topic")
    pages, other = Pages(broker, f"{name}:{PASSWORD}"), Pages(broker, f"reader:{PASSWORD}")
    pages.get("/topics")
    operator = OperatorCli(broker)
    if change == "removed":
        operator.json("users", "remove", name)
    else:
        done = operator("users", "passwd", name, "--password-stdin", typed="another-password")
        assert done.returncode == 0, done.stderr
    wait_until(lambda: pages.request("GET", "/topics")[0] == 303, 30, "it is out")
    assert pages.log_in(name, PASSWORD)[0] == 401
    other.get("/topics")


def test_a_killed_worker_does_not_keep_a_removed_user_in(broker: Broker) -> None:
    """Who says that sessions are over may be down at the moment: every request is checked."""
    add_user(broker, "unlucky", "--operation read --topic open-topic")
    pages, other = Pages(broker, f"unlucky:{PASSWORD}"), Pages(broker, f"reader:{PASSWORD}")
    broker.kill("worker", 0)
    OperatorCli(broker).json("users", "remove", "unlucky")
    wait_until(lambda: pages.request("GET", "/topics")[0] == 303, 60, "it is out")
    wait_until(lambda: other.request("GET", "/topics")[0] == 200, 60, "others are served")


def test_guessing_at_once_is_refused(broker: Broker) -> None:
    """Answers to failures wait longer and longer, so that guesses at the same time pile up."""
    visitors = [Pages(broker) for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(len(visitors)) as pool:
        tries = list(pool.map(lambda each: each.log_in("reader", "guess"), visitors))
    statuses = [status for status, _ in tries]
    assert 429 in statuses
    assert set(statuses) <= {401, 429}
    assert any("Too many logins at once" in page for _, page in tries)
    assert Pages(broker).log_in("reader", PASSWORD)[0] == 303


def test_live_records_end_with_the_session(broker: Broker) -> None:
    pages = Pages(broker, f"reader:{PASSWORD}")
    stranger = Pages(broker, f"nothing:{PASSWORD}")
    stream = {"Accept": "text/event-stream"}
    _, denied, _ = stranger.request("GET", "/topics/open-topic/live", **stream)
    assert "event: state\ndata: nothing needs DESCRIBE" in denied
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        watching = pool.submit(pages.request, "GET", "/topics/open-topic/live", **stream)
        other = Pages(broker)
        other.cookies.load(pages.cookies.output(header="", sep=";"))
        other.get("/topics")
        other.post("/logout")
        status, text, _ = watching.result(60)
    assert status == 200
    assert text.rstrip().endswith("event: state\ndata: you have logged out")


def test_streams_are_shown_to_super_users_only(broker: Broker) -> None:
    """A stream is looked at before it is adopted: any key of the store, if that were allowed."""
    add_user(broker, "creator", "--operation create --topic mine")
    page = Pages(broker, f"creator:{PASSWORD}").get("/adopt?stream=moldau:changes&topic=mine")
    assert "streams outside of Moldau (moldau.native.key) are for super users only" in page
    assert "<td><code>moldau:changes</code></td>" not in page
