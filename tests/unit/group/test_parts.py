"""The small parts: ULIDs, records, subscriptions, the order of states."""

import importlib
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.group.config import IdGenerator
from broker.group.record import FORMAT, GroupRecord, MemberRecord, UnknownRecordFormat
from broker.group.record import decode as decode_record
from broker.group.record import encode as encode_record
from broker.group.states import GroupState
from broker.group.subscription import topics_of
from broker.group.ulid import CROCKFORD, ulid
from tests.support import kafka_python
from tests.support.group_driver import GroupDriver


def test_a_ulid_of_the_specification() -> None:
    assert ulid(1_469_918_176_385, bytes(10)) == "01ARYZ6S41" + "0" * 16
    assert ulid(0, b"\xff" * 10) == "0" * 10 + "Z" * 16


@given(
    st.integers(0, 2**48 - 1),
    st.integers(0, 2**48 - 1),
    st.binary(min_size=10, max_size=10),
    st.binary(min_size=10, max_size=10),
)
def test_ulids_sort_by_time_then_by_randomness(a: int, b: int, ra: bytes, rb: bytes) -> None:
    one, other = ulid(a, ra), ulid(b, rb)
    assert len(one) == 26
    assert set(one) <= set(CROCKFORD)
    assert (one < other) is ((a, ra) < (b, rb))


def test_what_is_no_ulid() -> None:
    with pytest.raises(ValueError, match="48 bits"):
        ulid(2**48, bytes(10))
    with pytest.raises(ValueError, match="48 bits"):
        ulid(-1, bytes(10))
    with pytest.raises(ValueError, match="random bytes"):
        ulid(0, bytes(9))


def test_ids_are_made_as_kafka_makes_them() -> None:
    ids = IdGenerator()
    member_id = ids.member_id("client-1")
    assert member_id.startswith("client-1-")
    assert len(member_id) == len("client-1-") + 36
    assert member_id != ids.member_id("client-1")
    identity = ids.identity(1_469_918_176_385)
    assert identity.startswith("cgp_01ARYZ6S41")
    assert len(identity) == 4 + 26


RECORD = GroupRecord(
    group_id="g",
    identity="cgp_x",
    revision=3,
    state=GroupState.STABLE,
    state_since_ms=17,
    generation_id=2,
    protocol_type="consumer",
    protocol_name="range",
    leader="m",
    members=(
        MemberRecord("m", None, "c", "/h", 1, 2, (("range", b"\x00"), ("sticky", b"")), b"\xff"),
    ),
)


def test_a_record_comes_back_as_it_was() -> None:
    assert decode_record(encode_record(RECORD)) == RECORD


def test_a_record_of_a_newer_version_is_refused() -> None:
    newer = msgspec.structs.replace(RECORD, format=FORMAT + 1)
    with pytest.raises(UnknownRecordFormat):
        decode_record(encode_record(newer))


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x00", b"\x80", encode_record(RECORD)[:-1]])
def test_what_is_no_record(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_record(data)


def string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def topic_list(*names: str) -> bytes:
    return struct.pack(">i", len(names)) + b"".join(map(string, names))


V0 = topic_list("t", "ü") + struct.pack(">i", 2) + b"ud"
OWNED = struct.pack(">i", 1) + string("t") + struct.pack(">ii", 1, 0)


@pytest.mark.parametrize(
    "metadata",
    [
        b"\x00\x00" + V0,
        b"\x00\x01" + V0 + OWNED,
        b"\x00\x02" + V0 + OWNED + struct.pack(">i", 5),
        b"\x00\x03" + V0 + OWNED + struct.pack(">i", 5) + string("rack"),
        b"\x00\x09" + V0 + b"whatever comes later",
    ],
)
def test_the_topics_of_a_subscription_of_any_version(metadata: bytes) -> None:
    assert topics_of(metadata) == frozenset({"t", "ü"})


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\x00",
        b"\xff\xff" + V0,
        b"\x00\x00" + struct.pack(">i", -1),
        b"\x00\x00" + struct.pack(">i", 2**31 - 1) + string("t"),
        b"\x00\x00" + struct.pack(">ih", 1, -1),
        b"\x00\x00" + struct.pack(">ih", 1, 5) + b"abc",
        b"\x00\x00" + struct.pack(">ih", 1, 1) + b"\xff",
    ],
)
def test_what_is_no_subscription_is_unknown(metadata: bytes) -> None:
    assert topics_of(metadata) is None


@given(st.binary(max_size=60))
def test_no_bytes_make_it_fail(metadata: bytes) -> None:
    topics_of(metadata)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_subscriptions_as_kafka_python_writes_them(version: int) -> None:
    assert kafka_python.PROTOCOL  # imports kafka without its warnings
    metadata: Any = importlib.import_module("kafka.protocol.consumer.metadata")
    fields: dict[str, object] = {"topics": ["t", "u"], "user_data": b"x"}
    if version >= 1:
        owned = metadata.ConsumerProtocolSubscription.TopicPartition(topic="t", partitions=[0])
        fields["owned_partitions"] = [owned]
    written = metadata.ConsumerProtocolSubscription(version=version, **fields).encode()
    assert struct.unpack_from(">h", written) == (version,)
    assert topics_of(bytes(written)) == frozenset({"t", "u"})


def test_subscriptions_as_aiokafka_writes_them() -> None:
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    written = RoundRobinPartitionAssignor.metadata({"t", "u"}).encode()
    assert topics_of(written) == frozenset({"t", "u"})


def test_a_transition_that_does_not_exist_is_a_defect() -> None:
    g = GroupDriver()
    g.form("a")
    with pytest.raises(AssertionError, match="Stable -> CompletingRebalance"):
        g.group.move(GroupState.COMPLETING_REBALANCE, "on purpose")
