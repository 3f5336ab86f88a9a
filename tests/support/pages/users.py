"""Users of a console, and everything that can be done with its forms."""

from __future__ import annotations

from tests.support.brokers.moldau_cli import OperatorCli
from tests.support.brokers.running import Broker, wait_until
from tests.support.brokers.secured import librdkafka_settings

PASSWORD = "correct-horse-battery"


def is_serving(broker: Broker) -> None:
    wait_until(lambda: broker.processes("http")[0]["state"] == "running", 60, "it serves")


def password_of(broker: Broker) -> str:
    return librdkafka_settings(broker)["sasl.password"]


def add_user(broker: Broker, name: str, *acls: str) -> None:
    """`acls`: arguments of `moldau acls add`."""
    operator = OperatorCli(broker)
    done = operator("users", "add", name, "--password-stdin", typed=PASSWORD)
    assert done.returncode == 0, done.stderr
    for each in acls:
        operator.json("acls", "add", "--user", name, *each.split())


# Path, form, and the right that is missing to a user without any ACL.
ACL = {
    "principal": "nothing", "permission": "ALLOW", "operation": "ALL", "host": "",
    "resource": "TOPIC", "name": "*",
}  # fmt: skip
QUOTA = {"user": "nothing", "key": "producer_byte_rate", "value": "1mb"}
RESET = {"goal": "earliest", "value": "", "topics": "", "execute": "1"}
ACTIONS: list[tuple[str, dict[str, str], str]] = [
    ("/topics", {"name": "mine", "partitions": "1"}, "CREATE on topic mine"),
    (
        "/topics/secret-topic/configs",
        {"config": "retention.ms", "value": "1", "action": "set"},
        "ALTER_CONFIGS on topic secret-topic",
    ),
    ("/topics/secret-topic/partitions", {"partitions": "3"}, "ALTER on topic secret-topic"),
    ("/topics/secret-topic/delete", {"confirm": "secret-topic"}, "DELETE on topic secret-topic"),
    ("/topics/secret-topic/send", {"key": "k", "value": "v"}, "DESCRIBE on topic secret-topic"),
    ("/groups/secret-group/reset", RESET, "DESCRIBE on group secret-group"),
    ("/groups/secret-group/reset", RESET | {"execute": ""}, "DESCRIBE on group secret-group"),
    ("/groups/secret-group/delete", {"confirm": "secret-group"}, "DESCRIBE on group secret-group"),
    (
        "/adopt",
        {"stream": "a-key", "topic": "mine"},
        "CREATE on topic mine",
    ),
    ("/access/users", {"name": "admin", "password": "x"}, "ALTER on the cluster"),
    ("/access/users", {"name": "mine", "password": ""}, "ALTER on the cluster"),
    ("/access/users/remove", {"name": "admin"}, "DESCRIBE on the cluster"),
    ("/access/acls", ACL, "ALTER on the cluster"),
    (
        "/access/acls/remove",
        {"acl": "ALLOW User:reader READ TOPIC LITERAL open-topic *"},
        "ALTER on the cluster",
    ),
    ("/access/quotas", QUOTA, "ALTER_CONFIGS on the cluster"),
    ("/access/quotas", QUOTA | {"action": "remove"}, "ALTER_CONFIGS on the cluster"),
]
