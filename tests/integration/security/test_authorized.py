"""ACLs at work: on every worker, through the router, on the fast paths; lists and operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest
import redis

from moldau.broker.security.acl import Acl
from moldau.broker.security.identity import Identity
from moldau.broker.security.resources import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from moldau.broker.topics.topics import AUDIT
from moldau.broker.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.describe_acls import DescribeAclsRequest
from moldau.broker.wire.messages.describe_cluster import DescribeClusterRequest
from moldau.broker.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.broker.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from moldau.broker.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest
from moldau.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.broker.wire.schema import NO_UUID
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.raw.client import RawClient, make_batch, records_in
from tests.support.raw.identified import IdentifiedClient

ALICE = Identity("User:alice", "10.0.0.1")
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TOPIC_DENIED, GROUP_DENIED = 29, 30


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"authorizer.class.name": "standard", "super.users": "User:admin"}
    with running_broker(workers=2, broker=settings) as started:
        yield started


@pytest.fixture(scope="module")
def operator(broker: Broker) -> Iterator[IdentifiedClient]:
    with IdentifiedClient(broker) as client:
        yield client


@pytest.fixture
def nothing_allowed(operator: IdentifiedClient) -> Iterator[None]:
    yield
    operator.delete_of(ALICE.principal)


def allow(
    operation: Operation,
    resource: ResourceType,
    name: str,
    *,
    principal: str = ALICE.principal,
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return Acl(resource, name, pattern, principal, host, operation, permission)


def create(operator: IdentifiedClient, *names: str) -> None:
    wanted = [CreatableTopic(name, 2, 1) for name in names]
    answer = operator.call(CreateTopicsRequest(wanted))
    assert [topic.error_code for topic in answer.topics] == [0] * len(names)


def produce(client: IdentifiedClient, topic: str, *, partitions: int = 1) -> int:
    """Produce to one partition, or to several: there is no route for that."""
    batch = memoryview(make_batch([(b"k", b"v", 1)]))
    items = [PartitionProduceData(number, batch) for number in range(partitions)]
    data = TopicProduceData(topic, partition_data=items)
    (answer,) = client.call(ProduceRequest(None, -1, 10_000, [data]), 9).responses
    (code,) = {each.error_code for each in answer.partition_responses}
    assert isinstance(code, int)
    return code


@pytest.mark.usefixtures("nothing_allowed")
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_change_counts_on_every_worker_and_on_requests_that_repeat(
    broker: Broker, operator: IdentifiedClient, partitions: int
) -> None:
    topic = f"to-{partitions}"
    create(operator, topic)

    def code(client: IdentifiedClient) -> int:
        return produce(client, topic, partitions=partitions)

    with (
        IdentifiedClient(broker, ALICE, 0) as one,
        IdentifiedClient(broker, ALICE, 1) as other,
        IdentifiedClient(broker, Identity("User:bob", "10.0.0.2"), 1) as bob,
    ):
        for _ in range(3):
            assert {code(each) for each in (one, other)} == {TOPIC_DENIED}
        for _ in range(2):
            assert operator.create([allow(WRITE, TOPIC, topic)]) == [0]  # at once, everywhere
            for _ in range(3):  # from the second one on it is known that they may
                assert {code(each) for each in (one, other)} == {0}
            assert code(bob) == TOPIC_DENIED
            assert operator.delete_of(ALICE.principal) == 1
            for _ in range(2):
                assert {code(each) for each in (one, other)} == {TOPIC_DENIED}


@pytest.mark.usefixtures("nothing_allowed")
def test_topics_of_one_request_are_told_apart(broker: Broker, operator: IdentifiedClient) -> None:
    names = ("mine", "theirs")
    create(operator, *names)
    assert operator.create([allow(WRITE, TOPIC, "mine")]) == [0]
    batch = memoryview(make_batch([(b"k", b"v", 1)]))
    data = [
        TopicProduceData(name, partition_data=[PartitionProduceData(0, batch)]) for name in names
    ]
    with IdentifiedClient(broker, ALICE) as client:
        for _ in range(3):
            assert produce(client, "mine") == 0
            answers = client.call(ProduceRequest(None, -1, 10_000, data), 9).responses
            codes = [each.partition_responses[0].error_code for each in answers]
            assert codes == [0, TOPIC_DENIED]


@pytest.mark.usefixtures("nothing_allowed")
def test_heartbeats_that_repeat_obey_too(broker: Broker, operator: IdentifiedClient) -> None:
    with IdentifiedClient(broker, ALICE) as client:

        def codes() -> set[int]:
            request = HeartbeatRequest("beating", 1, "m")
            return {client.call(request, 4).error_code for _ in range(3)}

        assert codes() == {GROUP_DENIED}
        operator.create([allow(READ, GROUP, "beating")])
        assert GROUP_DENIED not in codes()
        deny = allow(Operation.ALL, GROUP, "beat", pattern=PatternType.PREFIXED)
        operator.create([msgspec.structs.replace(deny, permission=Permission.DENY)])
        assert codes() == {GROUP_DENIED}


@pytest.mark.usefixtures("nothing_allowed")
def test_a_producer_that_reads_no_reply_is_disconnected(
    broker: Broker, operator: IdentifiedClient
) -> None:
    create(operator, "no-acks")
    batch = memoryview(make_batch([(b"k", b"v", 1)]))
    data = TopicProduceData("no-acks", partition_data=[PartitionProduceData(0, batch)])
    with IdentifiedClient(broker, ALICE) as client:
        client.send(ProduceRequest(None, 0, 10_000, [data]), 9)
        client.must_be_closed()


@pytest.mark.usefixtures("nothing_allowed")
def test_hosts_patterns_and_deny(broker: Broker, operator: IdentifiedClient) -> None:
    create(operator, "eu-orders", "eu-secret", "us-orders")
    prefixed = PatternType.PREFIXED
    acls = [
        allow(WRITE, TOPIC, "eu-", pattern=prefixed, host="10.0.0.1"),
        allow(WRITE, TOPIC, "eu-secret", permission=Permission.DENY),
        allow(WRITE, TOPIC, "*", principal="User:*", host="10.9.9.9"),
    ]
    assert operator.create(acls) == [0, 0, 0]
    topics = ("eu-orders", "eu-secret", "us-orders")
    expected = {
        ("User:alice", "10.0.0.1"): [0, TOPIC_DENIED, TOPIC_DENIED],
        ("User:alice", "10.0.0.2"): [TOPIC_DENIED] * 3,
        ("User:alice", "10.9.9.9"): [0, TOPIC_DENIED, 0],
        ("User:eve", "10.9.9.9"): [0, 0, 0],
        ("User:admin", "10.0.0.3"): [0, 0, 0],
    }
    for (principal, host), codes in expected.items():
        with IdentifiedClient(broker, Identity(principal, host)) as client:
            assert [produce(client, topic) for topic in topics] == codes, (principal, host)
    assert operator.delete_of("User:*") == 1


def test_clients_of_ports_are_anonymous_and_denied(
    broker: Broker, operator: IdentifiedClient
) -> None:
    create(operator, "hidden")
    for port in (broker.port, broker.port + 1):  # the router and a worker
        with RawClient(port) as client:
            assert client.call(MetadataRequest(None), 9).topics == []
            coordinators = [
                client.call(FindCoordinatorRequest("", 0, ["g"]), 4).coordinators[0].error_code
                for _ in range(2)
            ]
            assert coordinators == [GROUP_DENIED] * 2
            assert client.fetch("hidden", 0).error_code == TOPIC_DENIED
    acls = [
        allow(READ, GROUP, "g", principal="User:ANONYMOUS", host="127.0.0.1"),
        allow(READ, TOPIC, "hidden", principal="User:ANONYMOUS"),
    ]
    assert operator.create(acls) == [0, 0]
    for port in (broker.port, broker.port + 1):
        with RawClient(port) as client:
            assert [each.name for each in client.call(MetadataRequest(None), 9).topics] == [
                "hidden"
            ]
            (found,) = client.call(FindCoordinatorRequest("", 0, ["g"]), 4).coordinators
            assert (found.error_code, found.port) != (GROUP_DENIED, -1)
            assert found.port in (broker.port + 1, broker.port + 2)
            assert client.fetch("hidden", 0).error_code == 0
    operator.delete_of("User:ANONYMOUS")


def bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


@pytest.mark.usefixtures("nothing_allowed")
def test_authorized_operations(broker: Broker, operator: IdentifiedClient) -> None:
    create(operator, "operated")
    acls = [allow(READ, TOPIC, "operated"), allow(Operation.DELETE, GROUP, "operated")]
    assert operator.create(acls) == [0, 0]
    cluster = DescribeClusterRequest(include_cluster_authorized_operations=True)
    topics = MetadataRequest([MetadataRequestTopic(name="operated")], False, True, True)
    with IdentifiedClient(broker, ALICE) as client:
        found = client.call(topics, 9)
        assert found.topics[0].topic_authorized_operations == bits(READ, DESCRIBE)
        assert found.cluster_authorized_operations == 0
        assert client.call(cluster).cluster_authorized_operations == 0
        described = client.call(DescribeTopicPartitionsRequest()).topics
        assert [each.name for each in described] == ["operated"]
        assert described[0].topic_authorized_operations == bits(READ, DESCRIBE)
        (group,) = client.call(DescribeGroupsRequest(["operated"], True), 5).groups
        assert group.authorized_operations == bits(Operation.DELETE, DESCRIBE)
        operator.create([allow(Operation.ALTER, CLUSTER, CLUSTER_NAME)])
        expected = bits(Operation.ALTER, DESCRIBE)
        assert client.call(cluster).cluster_authorized_operations == expected
    with IdentifiedClient(broker, Identity("User:admin", "10.0.0.9")) as admin:
        everything = admin.call(cluster).cluster_authorized_operations
        assert everything & bits(Operation.ALTER, Operation.IDEMPOTENT_WRITE)


@pytest.mark.usefixtures("nothing_allowed")
def test_what_exists_is_not_told_to_those_who_may_not_describe_it(
    broker: Broker, operator: IdentifiedClient
) -> None:
    create(operator, "existing")
    (known,) = operator.call(MetadataRequest([MetadataRequestTopic(name="existing")])).topics
    names = ("existing", "missing", "not a name")
    with IdentifiedClient(broker, ALICE) as client:
        request = MetadataRequest([MetadataRequestTopic(name=name) for name in names])
        for answer in client.call(request).topics:
            assert answer.error_code == TOPIC_DENIED
            assert (answer.topic_id, answer.partitions) == (NO_UUID, [])
        by_id = MetadataRequest([MetadataRequestTopic(known.topic_id, None)])
        (answer,) = client.call(by_id).topics
        assert (answer.error_code, answer.name) == (TOPIC_DENIED, None)
        (gone,) = client.call(
            DeleteTopicsRequest([DeleteTopicState(topic_id=known.topic_id)])
        ).responses
        assert (gone.error_code, gone.name) == (TOPIC_DENIED, None)
        operator.create([allow(DESCRIBE, TOPIC, "existing")])
        (gone,) = client.call(
            DeleteTopicsRequest([DeleteTopicState(topic_id=known.topic_id)])
        ).responses
        assert (gone.error_code, gone.name) == (TOPIC_DENIED, "existing")


@pytest.mark.usefixtures("nothing_allowed")
def test_created_topics_show_their_configs_to_those_who_may_see_them(
    broker: Broker, operator: IdentifiedClient
) -> None:
    prefixed = PatternType.PREFIXED
    operator.create([allow(Operation.CREATE, TOPIC, "made-", pattern=prefixed)])
    with IdentifiedClient(broker, ALICE) as client:
        (made,) = client.call(CreateTopicsRequest([CreatableTopic("made-1", 1, 1)])).topics
        assert (made.error_code, made.topic_config_error_code) == (0, TOPIC_DENIED)
        assert (made.num_partitions, made.configs) == (-1, None)
        operator.create([allow(Operation.DESCRIBE_CONFIGS, TOPIC, "made-", pattern=prefixed)])
        (made,) = client.call(CreateTopicsRequest([CreatableTopic("made-2", 1, 1)])).topics
        assert (made.error_code, made.topic_config_error_code) == (0, 0)
        assert made.configs


@pytest.mark.usefixtures("nothing_allowed")
def test_streams_of_others_are_for_super_users(broker: Broker, operator: IdentifiedClient) -> None:
    operator.create([allow(Operation.ALL, TOPIC, "*"), allow(Operation.ALL, CLUSTER, CLUSTER_NAME)])
    configs = [("moldau.storage", "native"), ("moldau.native.key", "outside:{topic}:{partition}")]

    def adopt(client: IdentifiedClient, name: str) -> int:
        wanted = [CreatableTopicConfig(key, value) for key, value in configs]
        request = CreateTopicsRequest([CreatableTopic(name, 1, 1, [], wanted)])
        code: int = client.call(request).topics[0].error_code
        return code

    with IdentifiedClient(broker, ALICE) as client:
        assert adopt(client, "adopted") == TOPIC_DENIED
    with IdentifiedClient(broker, Identity("User:admin", "10.0.0.9")) as admin:
        assert adopt(admin, "adopted") == 0
    assert adopt(operator, "adopted-too") == 0
    more = CreatePartitionsRequest([CreatePartitionsTopic("adopted", 2, None)], 10_000)
    with IdentifiedClient(broker, ALICE) as client:
        assert client.call(more).results[0].error_code == TOPIC_DENIED
    assert operator.call(more).results[0].error_code == 0


def test_the_audit_says_who_did_what_and_is_written_by_the_broker_only(
    broker: Broker, operator: IdentifiedClient
) -> None:
    admin = Identity("User:admin", "10.7.7.7", "PLAINTEXT")
    mallory = Identity("User:mallory", "10.6.6.6", "PLAINTEXT")
    acl = allow(READ, TOPIC, "audited", principal="User:mallory")
    with IdentifiedClient(broker, admin) as client, IdentifiedClient(broker, mallory) as other:
        create(client, "audited")
        client.create([acl])
        assert {produce(other, "audited") for _ in range(5)} == {TOPIC_DENIED}

        def events() -> list[dict[str, object]]:
            with RawClient(broker.port + 1) as reader:
                answer = reader.fetch(AUDIT, 0)
                return [msgspec.json.decode(record.value or b"") for record in records_in(answer)]

        assert operator.create([allow(READ, TOPIC, AUDIT, principal="User:ANONYMOUS")]) == [0]

        def is_denial_there() -> bool:
            return any(each.get("principal") == "User:mallory" for each in events())

        wait_until(is_denial_there, 30, "the denial is there")
        by_admin = [e for e in events() if e.get("principal") == "User:admin"]
        changes = [(e["what"], e["action"], e["name"]) for e in by_admin if e["host"] == "10.7.7.7"]
        assert changes == [("topic", "created", "audited"), ("acl", "created", acl.text)]
        denied = [e for e in events() if e.get("principal") == "User:mallory"]
        assert [(e["event"], e["operation"], e["name"]) for e in denied] == [
            ("denied", "WRITE", "audited")
        ]
        assert denied[0]["host"] == "10.6.6.6"
        assert produce(client, AUDIT) == 17  # INVALID_TOPIC_EXCEPTION, for a super user too
    assert '"event":"denied"' in broker.log()
    operator.delete_of("User:ANONYMOUS")
    operator.delete_of("User:mallory")


@pytest.fixture
def started(start_moldau: Callable[..., Broker]) -> Broker:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        "allow.everyone.if.no.acl.found": "true",
    }
    return start_moldau(workers=1, broker=settings)


def test_an_emptied_store_leaves_the_operator_and_super_users(started: Broker) -> None:
    everything = DescribeAclsRequest(1, None, 1, None, None, 1, 1)
    with (
        IdentifiedClient(started) as operator,
        IdentifiedClient(started, ALICE) as alice,
        IdentifiedClient(started, Identity("User:admin", "10.0.0.9")) as admin,
    ):
        create(operator, "open", "closed")
        operator.create([allow(READ, TOPIC, "closed", principal="User:bob")])
        assert produce(alice, "open") == 0  # no ACL is about it
        assert produce(alice, "closed") == TOPIC_DENIED
        (listed,) = alice.call(everything).resources
        assert listed.resource_name == "closed"
        with redis.from_url(started.store_url) as store:
            store.flushall()
        wait_until(lambda: "EMPTIED" in started.log(), 30, "the worker has noticed")
        wait_until(lambda: produce(alice, "open") == TOPIC_DENIED, 30, "alice is denied")
        create(admin, "open", "again")
        assert produce(alice, "again") == TOPIC_DENIED
        assert produce(admin, "again") == 0
        operator.create([allow(READ, TOPIC, "closed", principal="User:bob")])
        assert produce(alice, "again") == 0


def test_an_entry_that_cannot_be_read_closes_what_it_may_have_denied(started: Broker) -> None:
    with IdentifiedClient(started) as operator, IdentifiedClient(started, ALICE) as alice:
        create(operator, "open")
        with redis.from_url(started.store_url) as store:
            store.hset("moldau:acls", "ALLOW ? READ OTHER", b"")
            operator.create([allow(READ, TOPIC, "other")])
            assert produce(alice, "open") == 0
            store.hset("moldau:acls", "DENY ? READ OTHER", b"")
            operator.create([allow(READ, TOPIC, "another")])
            assert produce(alice, "open") == TOPIC_DENIED
            assert produce(operator, "open") == 0
