"""Every client's groups are Redis consumer groups, also where only the router is reached."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.support.brokers.native import Native
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.clients.members import (
    AiokafkaMember,
    ConfluentConsumerMember,
    ConfluentMember,
    KafkaPythonMember,
    Member,
    MemberSettings,
)

PATIENCE_S = 30.0


@pytest.fixture(scope="module", params=["worker", "router"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    settings = {"group.initial.rebalance.delay.ms": 0}
    options = {"advertise": "router"} if request.param == "router" else {}
    with running_broker(workers=2, broker=settings, **options) as started:
        yield started


@pytest.mark.parametrize(
    "kind",
    [ConfluentMember, ConfluentConsumerMember, KafkaPythonMember, AiokafkaMember],
    ids=lambda kind: kind.__name__,
)
def test_a_group_reads_and_commits(broker: Broker, kind: type[Member]) -> None:
    topic = Native(broker, 2)
    group = f"group-{uuid.uuid4().hex[:8]}"
    for partition in range(2):
        topic.add(*range(50), partition=partition)
    member = kind(broker.bootstrap, MemberSettings(group=group, topics=[topic.name]))
    member.start()
    try:
        _wait(member, 100)
        topic.add("more", partition=1)
        _wait(member, 101)
        for partition in range(2):
            (name,) = _consumers(topic, group, partition)
            topic.wait_for_pending(group, 0, partition)
            facts = topic.group(group, partition)
            assert facts is not None
            assert facts["lag"] == 0
            assert facts["entries-read"] == 50 + partition
    finally:
        member.stop()
    assert len(name) >= 22  # a member id: of the consumer protocol a UUID in base64
    for partition in range(2):
        wait_until(
            lambda at=partition: topic.consumers(group, at) == [],  # type: ignore[misc]
            PATIENCE_S,
            "who left is no consumer",
        )
    topic.close()


def _consumers(topic: Native, group: str, partition: int) -> list[str]:
    wait_until(lambda: topic.group(group, partition) is not None, PATIENCE_S, "the group is there")
    return topic.consumers(group, partition)


def _wait(member: Member, count: int) -> None:
    def has_read() -> bool:
        member.check()
        return len(member.got) >= count

    wait_until(has_read, PATIENCE_S, f"{count} are read")
