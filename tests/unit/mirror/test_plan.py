"""The decisions of a mirror."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.security.acl import Acl
from moldau.broker.security.resources import Operation, PatternType, Permission, ResourceType
from moldau.broker.settings.kafka.topic_keys import MIRROR_SOURCE
from moldau.broker.wire.batch import checksum, headers, read_header
from moldau.ops.client import TopicPartition
from moldau.ops.mirror import plan
from moldau.ops.mirror.plan import (
    Bounds,
    Commit,
    Refused,
    SourceConfig,
    chosen,
    config_changes,
    configs_to_copy,
    cut_chunks,
    filler,
    find_place,
    missing_acls,
    offsets_to_commit,
)
from tests.support.drivers.mirrored import batch_at, random_log
from tests.support.raw.record_batches import examples

seeds = st.integers(0, 1 << 32)


# --- chunks ---


@examples(200)
@given(seeds, st.integers(0, 40), st.integers(1, 2000), st.integers(0, 60))
def test_chunks_are_what_was_fetched_from_there_on(
    seed: int, skipped: int, size: int, cut_off: int
) -> None:
    """Nothing twice, nothing left out, nothing out of order, wherever it goes on."""
    batches = random_log(random.Random(seed), start=seed % 3 * 100)
    fetched = b"".join(batches)
    at = 0 if not skipped else read_header(batches[min(skipped, len(batches)) - 1]).next_offset
    whole = [one for one in batches if read_header(one).next_offset > at]
    if cut_off and whole:  # a reply may end inside a batch
        fetched, whole = fetched[:-cut_off], whole[:-1]
    limit, plan.CHUNK_BYTES = plan.CHUNK_BYTES, size
    try:
        chunks = list(cut_chunks(fetched, at))
    finally:
        plan.CHUNK_BYTES = limit
    assert b"".join(bytes(one.data) for one in chunks) == b"".join(whole)
    following = at
    for one in chunks:
        found = list(headers(one.data))
        assert one.at == following
        assert one.end == found[-1].next_offset
        assert len(one.data) <= size or len(found) == 1
        assert one.records == sum(header.record_count for header in found)
        assert one.epoch == found[-1].leader_epoch
        following = one.end


def test_a_batch_across_the_place_where_the_log_ends_is_refused() -> None:
    with pytest.raises(Refused, match="from offset 10 to 14 begins before offset 12"):
        list(cut_chunks(batch_at(10, [10, 14]), 12))


def test_an_old_record_format_is_refused() -> None:
    batch = bytearray(batch_at(7, [7]))
    batch[plan.MAGIC_AT] = 1
    with pytest.raises(Refused, match="at offset 7 it has records in the format 1"):
        list(cut_chunks(batch, 0))


@pytest.mark.parametrize(("at", "end"), [(0, 1), (0, 1 << 40), (98, 100)])
def test_a_filler_ends_where_the_source_does(at: int, end: int) -> None:
    chunk = filler(at, end)
    header = read_header(chunk.data)
    assert (chunk.at, chunk.end, header.next_offset, header.record_count) == (at, end, end, 0)
    assert checksum(chunk.data) == header.crc
    assert [one[:3] for one in cut_chunks(chunk.data, at)] == [chunk[:3]]
    assert chunk.epoch == -1


# --- where a partition goes on ---


@examples(300)
@given(*[st.integers(0, 50)] * 4)
def test_a_partition_goes_on_inside_the_sources_log(a: int, b: int, c: int, d: int) -> None:
    source, target = Bounds(*sorted((a, b))), Bounds(*sorted((c, d)))
    if target.end > source.end:
        with pytest.raises(Refused, match="not the same offsets"):
            find_place(source, target)
        return
    place = find_place(source, target)
    assert source.start <= place <= source.end
    assert place >= target.end
    assert place in (source.start, target.end)


# --- topics and configuration ---


def test_what_a_cluster_keeps_for_itself_is_not_chosen() -> None:
    names = ["b", "a", "__consumer_offsets", "__transaction_state", "__moldau_audit", "_schemas"]
    assert chosen(names, re.compile(".*")) == ["_schemas", "a", "b"]
    assert chosen(["shop.a", "workshop.a"], re.compile(r"shop\..*")) == ["shop.a"]


def test_configuration_is_copied_where_it_means_the_same() -> None:
    found = configs_to_copy(
        [
            SourceConfig("retention.ms", "1000", is_default=False),
            SourceConfig("cleanup.policy", "delete", is_default=True),
            SourceConfig("min.insync.replicas", "2", is_default=False),
            SourceConfig("min.insync.replicas", "1", is_default=False),
            SourceConfig("confluent.tier", "x", is_default=False),
            SourceConfig(MIRROR_SOURCE, "other:1", is_default=False),
            SourceConfig("secret", None, is_default=False),
        ]
    )
    assert found.copied == {"retention.ms": "1000"}
    assert set(found.left_out) == {"min.insync.replicas", "confluent.tier", MIRROR_SOURCE}
    assert "replicas of the store" in found.left_out["min.insync.replicas"]


def test_configuration_that_is_reset_at_the_source_is_reset_here() -> None:
    present = {
        "retention.ms": "1",
        "segment.ms": "5",
        MIRROR_SOURCE: "c:t",
        "min.insync.replicas": "2",  # set here, and nothing that a mirror copies
        "moldau.batch.validation": "header",
    }
    wanted = {"retention.ms": "2", "cleanup.policy": "compact"}
    assert config_changes(wanted, present) == {
        "retention.ms": "2",
        "cleanup.policy": "compact",
        "segment.ms": None,
    }


keys = st.sampled_from(["retention.ms", "cleanup.policy", "segment.ms", "max.message.bytes"])


@given(st.dictionaries(keys, st.text("01")), st.dictionaries(keys, st.text("01")))
def test_a_topic_with_its_changes_is_configured_as_its_source(
    wanted: dict[str, str], present: dict[str, str]
) -> None:
    after: dict[str, str | None] = dict(present)
    for name, value in config_changes(wanted, present).items():
        if value is None:
            del after[name]
        else:
            after[name] = value
    assert after == wanted
    assert config_changes(wanted, after) == {}


# --- ACLs ---


def acl(resource: ResourceType, name: str, pattern: PatternType = PatternType.LITERAL) -> Acl:
    who = ("User:alice", "*", Operation.READ, Permission.ALLOW)
    return Acl(resource, name, pattern, *who)


def test_acls_that_are_missing_are_made() -> None:
    here = acl(ResourceType.GROUP, "g")
    source = [
        here,
        acl(ResourceType.TOPIC, "shop.a"),
        acl(ResourceType.TOPIC, "other"),
        acl(ResourceType.TOPIC, "*"),
        acl(ResourceType.TOPIC, "sh", PatternType.PREFIXED),
        acl(ResourceType.TRANSACTIONAL_ID, "t"),
        acl(ResourceType.CLUSTER, "kafka-cluster"),
    ]
    found = missing_acls(source, {here}, re.compile(r"shop\..*"))
    assert [(one.resource, one.name) for one in found] == [
        (ResourceType.TOPIC, "shop.a"),
        (ResourceType.TOPIC, "*"),
        (ResourceType.TOPIC, "sh"),
        (ResourceType.TRANSACTIONAL_ID, "t"),
    ]


# --- committed offsets ---

PLACE = TopicPartition("shop", 0)


@pytest.mark.parametrize(
    ("source", "here", "written", "end", "copied"),
    [
        (10, None, None, 100, True),
        (10, None, None, 9, False),  # its records are not here yet
        (10, None, None, 10, True),
        (10, None, None, None, False),  # not mirrored
        (10, 5, None, 100, True),
        (10, 10, None, 100, False),
        (10, 20, None, 100, False),  # consumers were moved, and are ahead
        (10, 20, 20, 100, True),  # reset at the source; nobody has committed here
        (10, 20, 15, 100, False),
    ],
)
def test_which_offsets_are_committed(
    source: int, here: int | None, written: int | None, end: int | None, *, copied: bool
) -> None:
    found = offsets_to_commit(
        {PLACE: Commit(source, "m")},
        {} if here is None else {PLACE: here},
        {} if written is None else {PLACE: Commit(written, "m")},
        lambda place: end,
    )
    assert found == ({PLACE: Commit(source, "m")} if copied else {})
