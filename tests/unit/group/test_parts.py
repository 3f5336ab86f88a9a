"""The small parts: ULIDs, records, the order of states."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.group.config import CROCKFORD, IdGenerator, ulid
from moldau.broker.group.record import (
    CONSUMER_FORMAT,
    FORMAT,
    ConsumerRecord,
    GroupRecord,
    MemberRecord,
    UnknownRecordFormat,
)
from moldau.broker.group.record import decode as decode_record
from moldau.broker.group.record import encode as encode_record
from moldau.broker.group.states import GroupState
from tests.support.drivers.group_driver import GroupDriver


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


def test_a_transition_that_does_not_exist_is_a_defect() -> None:
    g = GroupDriver()
    g.form("a")
    with pytest.raises(AssertionError, match="Stable -> CompletingRebalance"):
        g.group.move(GroupState.COMPLETING_REBALANCE, "on reason")


def test_a_head_of_the_consumer_protocol_is_refused_by_versions_that_do_not_know_it() -> None:
    """They read it as a classic record, and compare its format."""
    head = ConsumerRecord("g", "cgp_1", 1, GroupState.STABLE, 5, 7, "consumer", "uniform")
    data = encode_record(head)
    assert decode_record(data) == head
    as_classic = msgspec.msgpack.decode(data, type=GroupRecord)
    assert (as_classic.format, as_classic.generation_id) == (CONSUMER_FORMAT, 7)
    assert as_classic.format != FORMAT
