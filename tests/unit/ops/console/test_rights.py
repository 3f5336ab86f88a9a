"""Which right was missing, in words."""

from __future__ import annotations

import pytest

from moldau.broker.security.resources import ResourceType
from moldau.broker.wire.apis import APIS
from moldau.ops.client import Denied, refusal
from moldau.ops.commands.acl_options import parse_operation
from moldau.ops.console.rights import OPERATIONS, denial_text
from tests.support.raw.denials import CASES

TOPIC, GROUP, CLUSTER = 29, 30, 31


def denied(subject: str, code: int, message: str | None = None) -> Denied:
    error = refusal(subject, code, message)
    assert isinstance(error, Denied)
    return error


@pytest.mark.parametrize(("api", "resource"), OPERATIONS)
def test_every_right_is_one_that_the_broker_asks_for(api: str, resource: ResourceType) -> None:
    needed = {
        need.operation
        for case in CASES
        if APIS[case.api].name == api
        for need in case.needs
        if need.resource is resource
    }
    assert parse_operation(OPERATIONS[api, resource]) in needed


def test_the_right_is_named_and_the_command_that_adds_it() -> None:
    text = denial_text("alice", "IncrementalAlterConfigs", denied("topic or ders", TOPIC))
    assert "alice needs ALTER_CONFIGS on topic or ders." in text
    assert text.endswith("moldau acls add --user alice --operation alter-configs --topic 'or ders'")
    text = denial_text("bob", "DeleteGroups", denied("group billing", GROUP))
    assert "needs DELETE on group billing" in text
    text = denial_text(
        "bob", "CreateAcls", denied("ACLs", CLUSTER, "Cluster authorization failed.")
    )
    assert "needs ALTER on the cluster" in text
    assert text.endswith("--operation alter --cluster")


def test_a_partition_is_of_a_topic() -> None:
    text = denial_text("bob", "Fetch", denied("partition orders-0", TOPIC))
    assert "needs READ on the topic (partition orders-0)" in text


def test_the_brokers_own_reason_is_kept() -> None:
    message = "streams outside of Moldau (moldau.native.key) are for super users only"
    text = denial_text("bob", "CreateTopics", denied("topic x", TOPIC, message))
    assert text == f"topic x: {message}."


def test_a_request_that_is_not_in_the_table_is_named() -> None:
    text = denial_text("bob", "ElectLeaders", denied("partition x-0", CLUSTER))
    assert text == "partition x-0: no ACL allows bob ElectLeaders."
