"""Offsets of groups that are committed in transactions, and native topics: 7.24 to 7.26, 7.30."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.placement import owner_of
from moldau.broker.wire.messages.delete_groups import DeleteGroupsRequest
from moldau.broker.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.support.brokers.running import Broker, wait_until
from tests.support.raw.calls import LATEST, create_topic, list_offset
from tests.support.raw.client import RawClient, make_batch
from tests.support.raw.committed import await_stable, read_committed
from tests.support.raw.group import RawMember, coordinator_port
from tests.support.raw.transactions import (
    V1,
    ClientVersion,
    RawProducer,
    await_state,
    describe_transaction,
)

Producers = Callable[..., RawProducer]

UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
NONE = (0, -1)


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def member(broker: Broker, group: str) -> Iterator[RawMember]:
    with RawMember(coordinator_port(broker, group), group) as joined:
        yield joined


def offset_of(
    client: RawClient, group: str, topic: str, *, stable: bool = False
) -> tuple[int, int]:
    """Error and offset of partition 0."""
    topics = [OffsetFetchRequestTopics(topic, partition_indexes=[0])]
    groups = [OffsetFetchRequestGroup(group, topics=topics)]
    (answer,) = client.call(OffsetFetchRequest(groups=groups, require_stable=stable), 9).groups
    assert answer.error_code == 0, answer
    (found,) = answer.topics[0].partitions
    return found.error_code, found.committed_offset


def await_offset(client: RawClient, group: str, topic: str, offset: int) -> None:
    wait_until(
        lambda: offset_of(client, group, topic, stable=True)[0] == 0, 30, "nothing is pending"
    )
    assert offset_of(client, group, topic, stable=True) == (0, offset)


# 7.24


@pytest.mark.parametrize("commit", [True, False])
def test_7_24_invisible_until_the_commit(
    producers: Producers,
    router: RawClient,
    member: RawMember,
    topic: str,
    group: str,
    client_version: ClientVersion,
    commit: bool,
    direct: bool,
) -> None:
    assert member.commit(topic, 1) == 0
    producer = producers(client_version, direct=direct).begin()
    producer.write(topic, b"made of it")
    producer.write_offset(group, topic, 5)
    producer.write_offset(group, topic, 6)
    for client in (router, member):
        assert offset_of(client, group, topic) == (0, 1)
        assert offset_of(client, group, topic, stable=True) == (UNSTABLE, -1)
    producer.finish(commit=commit)
    for client in (router, member):
        await_offset(client, group, topic, 6 if commit else 1)
    await_stable(router, topic, 2)
    assert read_committed(router, topic) == ([b"made of it"] if commit else [])


@pytest.mark.parametrize("commit", [True, False])
def test_7_24_across_the_death_of_the_groups_owner(
    broker: Broker,
    producers: Producers,
    router: RawClient,
    topic: str,
    group: str,
    client_version: ClientVersion,
    commit: bool,
) -> None:
    producer = producers(client_version).begin()
    producer.write_offset(group, topic, 5)
    owner = owner_of(group, 2)
    old_pid = broker.kill("worker", owner)
    broker.wait_restarted("worker", owner, old_pid)
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=[])])
    wait_until(lambda: router.call(request, 9).groups[0].error_code == 0, 30, "it is loaded")
    assert offset_of(router, group, topic) == NONE
    assert offset_of(router, group, topic, stable=True) == (UNSTABLE, -1)
    producer.finish(commit=commit)
    await_offset(router, group, topic, 5 if commit else -1)


def test_7_24_a_group_that_was_not_added(
    producers: Producers, router: RawClient, topic: str, group: str, new_id: str, direct: bool
) -> None:
    producer = producers(V1, direct=direct).begin()
    for version in range(5):
        expected = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
        assert producer.commit_offset(group, topic, 5, version=version) == expected
    assert producer.commit_offset(group, topic, 5, version=5) == 0
    state = describe_transaction(router, new_id)
    assert [entry.topic for entry in state.topics] == ["__consumer_offsets"]
    for version in range(5):
        assert producer.commit_offset(group, topic, 6, version=version) == 0
    producer.finish(commit=True)
    await_offset(router, group, topic, 6)


@pytest.mark.parametrize("version", range(6))
def test_7_24_whose_transaction_it_is_not(
    producers: Producers, topic: str, group: str, version: int, direct: bool
) -> None:
    unknown_id = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer = producers(V1, direct=direct)
    producer.producer_id, producer.epoch = 123_456, 0
    assert producer.commit_offset(group, topic, 5, version=version) == unknown_id
    older = producers(V1, direct=direct).begin()
    producers(V1, direct=direct).begin()
    assert producer.commit_offset(group, topic, 5, version=version) == unknown_id
    code = older.commit_offset(group, topic, 5, version=version)
    assert code == ErrorCode.INVALID_PRODUCER_EPOCH


# 7.25


def test_7_25_members_generations_and_instances(
    producers: Producers,
    member: RawMember,
    topic: str,
    group: str,
    client_version: ClientVersion,
    direct: bool,
) -> None:
    producer = producers(client_version, direct=direct).begin()
    if client_version is V1:
        assert producer.add_offsets(group) == 0

    def commit(generation: int = -1, name: str = "", instance: str | None = None) -> int:
        return producer.commit_offset(
            group, topic, 5, generation=generation, member=name, instance=instance
        )

    member.instance = "static"
    member.enter()
    me, generation = member.member_id, member.generation
    assert commit(generation, me, "static") == 0
    assert commit(generation + 1, me, "static") == ErrorCode.ILLEGAL_GENERATION
    assert commit(generation - 1, me, "static") == ErrorCode.ILLEGAL_GENERATION
    assert commit(generation, "nobody") == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(generation, "another", "static") == ErrorCode.FENCED_INSTANCE_ID
    assert commit() == 0, "a producer that is no member"
    producer.finish(commit=False)


def test_7_25_an_unknown_group_with_a_generation(
    producers: Producers, topic: str, group: str
) -> None:
    producer = producers().begin()
    code = producer.commit_offset(group, topic, 5, generation=4, member="")
    assert code == ErrorCode.ILLEGAL_GENERATION
    assert producer.commit_offset(group, topic, 5) == 0
    producer.finish(commit=False)


def test_7_25_while_assignments_are_awaited(
    producers: Producers, router: RawClient, member: RawMember, topic: str, group: str
) -> None:
    member.join()
    joined = member.join()  # with the id it got
    assert joined.error_code == 0
    producer = producers().begin()
    code = producer.commit_offset(
        group, topic, 5, generation=member.generation, member=member.member_id
    )
    assert code == 0, "CompletingRebalance"
    assert member.commit(topic, 5) == ErrorCode.REBALANCE_IN_PROGRESS
    producer.finish(commit=True)
    await_offset(router, group, topic, 5)


# 7.26


@pytest.mark.parametrize("commit", [True, False])
def test_7_26_a_later_commit_stays(
    producers: Producers,
    router: RawClient,
    member: RawMember,
    topic: str,
    group: str,
    client_version: ClientVersion,
    commit: bool,
) -> None:
    producer = producers(client_version).begin()
    producer.write_offset(group, topic, 5)
    assert member.commit(topic, 3) == 0
    producer.finish(commit=commit)
    await_offset(router, group, topic, 3)


def test_7_26_delete_groups_removes_what_is_pending(
    producers: Producers, router: RawClient, topic: str, group: str, new_id: str
) -> None:
    producer = producers().begin()
    producer.write_offset(group, topic, 5)
    (answer,) = router.call(DeleteGroupsRequest([group])).results
    assert answer.error_code == 0
    producer.finish(commit=True)
    await_state(router, new_id, "CompleteCommit")
    await_offset(router, group, topic, -1)


# 7.30


@pytest.fixture
def native(router: RawClient) -> str:
    name = f"native-{uuid.uuid4().hex[:12]}"
    create_topic(router, name, {"moldau.storage": "native"}, partitions=2)
    return name


def test_7_30_records_of_native_topics_are_refused(
    producers: Producers,
    router: RawClient,
    topic: str,
    native: str,
    new_id: str,
    client_version: ClientVersion,
    direct: bool,
) -> None:
    unsupported = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    producer = producers(client_version, direct=direct).begin()
    producer.write(topic, b"lost")
    assert producer.add(native, 0) == {0: unsupported}
    for worker in (0, 1):
        for version in (9, 11, 12):
            answer = producer.send(native, b"x", version=version, worker=worker)
            assert answer.error_code == unsupported
    assert list_offset(router, native, LATEST).offset == 0
    producer.finish(commit=False)
    await_state(router, new_id, "CompleteAbort")
    producer.write(topic, b"kept")
    producer.finish(commit=True)
    await_stable(router, topic, 4)
    assert read_committed(router, topic) == [b"kept"]


def test_7_30_their_offsets_can_be_committed(
    producers: Producers,
    router: RawClient,
    native: str,
    group: str,
    client_version: ClientVersion,
) -> None:
    for value in (b"a", b"b", b"c"):
        assert router.produce(native, make_batch([(None, value, 1)])).error_code == 0
    end = list_offset(router, native, LATEST).offset
    producer = producers(client_version).begin()
    producer.write_offset(group, native, end)
    producer.finish(commit=False)
    await_offset(router, group, native, -1)
    producer.write_offset(group, native, end)
    producer.finish(commit=True)
    await_offset(router, group, native, end)
