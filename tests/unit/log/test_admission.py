"""May this batch enter this topic? Behaviour 4.2, rule by rule, and section 5's byte layout."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.errors import ErrorCode, KafkaError, RecordsRefused
from moldau.broker.log.writing.validation import admit
from moldau.broker.settings.kafka import BrokerConfig, TopicConfig, topic_config
from moldau.broker.wire import batch as layout
from moldau.broker.wire.batch import checksum, read_header, set_base_offset
from moldau.broker.wire.records import read_records
from tests.support.raw.client import make_batch

NOW = 1_700_000_000_000
LATEST = 12


def config(**options: object) -> TopicConfig:
    chosen = {name.replace("_", "."): str(value) for name, value in options.items()}
    return topic_config(chosen, BrokerConfig({}))


PLAIN = config()


def fresh(count: int = 3, codec: int = 0, time: int = NOW, **producer: int) -> bytearray:
    return make_batch([(b"k", b"v", time) for _ in range(count)], codec=codec, **producer)


def with_crc(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, layout.CRC_AT, checksum(batch))
    return batch


def altered(at: int, form: str, value: int, batch: bytearray | None = None) -> bytearray:
    """A batch with one field changed and a checksum that fits."""
    changed = bytearray(batch if batch is not None else fresh())
    struct.pack_into(form, changed, at, value)
    return with_crc(changed)


def refusal(
    batch: bytes | bytearray | None, topic: TopicConfig = PLAIN, version: int = LATEST
) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        admit(None if batch is None else memoryview(batch), topic, version, NOW)
    return refused.value.code


def test_4_2_a_sound_batch_is_admitted_as_it_is() -> None:
    for codec in range(5):
        batch = fresh(codec=codec)
        same, header = admit(memoryview(bytearray(batch)), PLAIN, LATEST, NOW)
        assert bytes(same) == bytes(batch)
        assert header.record_count == 3


# --- exactly one v2 batch ---


@pytest.mark.parametrize("records", [None, b"", b"\0" * 12, bytes(fresh()[:60])])
def test_4_2_no_batch(records: bytes | None) -> None:
    assert refusal(records) == ErrorCode.INVALID_RECORD


def test_4_2_exactly_one_batch_not_two() -> None:
    assert refusal(fresh() + fresh()) == ErrorCode.INVALID_RECORD


def test_4_2_exactly_one_batch_not_a_part_of_one() -> None:
    assert refusal(fresh()[:-1]) == ErrorCode.INVALID_RECORD


def test_4_2_exactly_one_batch_and_nothing_behind_it() -> None:
    assert refusal(fresh() + b"x") == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("length", [-1, 0, 48, 1 << 30])
def test_4_2_a_length_that_is_none(length: int) -> None:
    assert refusal(altered(8, ">i", length)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_4_2_only_format_2(magic: int) -> None:
    assert refusal(altered(16, ">b", magic)) == ErrorCode.INVALID_RECORD


# --- the count ---


@pytest.mark.parametrize("count", [0, -1, 2, 4])
def test_4_2_the_count_is_last_offset_delta_and_one(count: int) -> None:
    assert refusal(altered(57, ">i", count)) == ErrorCode.INVALID_RECORD


def test_4_2_the_count_is_above_zero() -> None:
    empty = altered(23, ">i", -1, altered(57, ">i", 0))
    assert refusal(empty) == ErrorCode.INVALID_RECORD


def test_4_2_more_records_than_the_bytes_can_hold() -> None:
    """Offsets would be used up by records that do not exist."""
    batch = altered(23, ">i", (1 << 31) - 2, altered(57, ">i", (1 << 31) - 1))
    assert refusal(batch) == ErrorCode.INVALID_RECORD


def test_4_2_the_smallest_records_there_are() -> None:
    batch = make_batch([(None, None, NOW)] * 50)
    assert admit(memoryview(batch), PLAIN, LATEST, NOW)[1].record_count == 50


# --- attributes ---


def test_4_2_no_control_batch() -> None:
    assert refusal(altered(21, ">h", layout.CONTROL)) == ErrorCode.INVALID_RECORD


def test_4_2_zstd_only_from_v7() -> None:
    """Kafka's own code for it: clients that know zstd know what it means."""
    batch = fresh(codec=layout.CODEC_ZSTD)
    assert refusal(batch, version=6) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    admit(memoryview(batch), PLAIN, 7, NOW)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_4_2_unknown_codecs(codec: int) -> None:
    assert refusal(altered(21, ">h", codec)) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


# --- producers ---


@pytest.mark.parametrize("sequence", [-1, -2])
def test_4_2_a_producer_id_needs_a_sequence(sequence: int) -> None:
    batch = fresh(producer_id=7, producer_epoch=0, base_sequence=sequence)
    assert refusal(batch) == ErrorCode.INVALID_RECORD


def test_4_2_a_producer_id_needs_an_epoch() -> None:
    batch = fresh(producer_id=7, producer_epoch=-1, base_sequence=0)
    assert refusal(batch) == ErrorCode.INVALID_RECORD


# --- checksum and size ---


@given(st.integers(layout.ATTRIBUTES_AT, 1 << 30), st.integers(1, 255))
def test_4_2_a_flipped_bit_under_the_checksum_is_a_corrupt_message(at: int, flip: int) -> None:
    batch = fresh()
    at = layout.ATTRIBUTES_AT + at % (len(batch) - layout.ATTRIBUTES_AT)
    batch[at] ^= flip
    assert refusal(batch) == ErrorCode.CORRUPT_MESSAGE


def test_5_place_and_leader_epoch_are_outside_the_checksum() -> None:
    batch = fresh()
    before = checksum(batch)
    set_base_offset(batch, 123_456_789_012)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch) == (123_456_789_012, 0)
    assert checksum(batch) == before == header.crc
    assert [record.offset for record in read_records(batch, 1 << 20)] == [
        123_456_789_012,
        123_456_789_013,
        123_456_789_014,
    ]


def test_4_2_larger_than_max_message_bytes() -> None:
    batch = fresh()
    fits, small = config(max_message_bytes=len(batch)), config(max_message_bytes=len(batch) - 1)
    admit(memoryview(bytearray(batch)), fits, LATEST, NOW)
    assert refusal(batch, small) == ErrorCode.MESSAGE_TOO_LARGE


# --- timestamps ---


def test_4_2_timestamps_too_far_ahead() -> None:
    topic = config(message_timestamp_after_max_ms=1_000)
    admit(memoryview(fresh(time=NOW + 1_000)), topic, LATEST, NOW)
    assert refusal(fresh(time=NOW + 1_001), topic) == ErrorCode.INVALID_TIMESTAMP


def test_4_2_timestamps_too_long_ago() -> None:
    topic = config(message_timestamp_before_max_ms=1_000)
    admit(memoryview(fresh(time=NOW - 1_000)), topic, LATEST, NOW)
    assert refusal(fresh(time=NOW - 1_001), topic) == ErrorCode.INVALID_TIMESTAMP


OTHERS = [(b"k", b"value", NOW)] * 40


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("place", [0, 1, 20, 40])
def test_4_2_each_record_has_a_timestamp_of_its_own(codec: int, place: int) -> None:
    """Whatever the header says of them: Kafka's validator goes by the records."""
    topic = config(message_timestamp_after_max_ms=1_000, message_timestamp_before_max_ms=1_000)
    for time, is_refused in ((-1_001, True), (-1_000, False), (1_000, False), (1_001, True)):
        odd = (b"k", b"value", NOW + time)
        batch = make_batch([*OTHERS[:place], odd, *OTHERS[place:]], codec=codec)
        batch = altered(layout.MAX_TIMESTAMP_AT, ">q", NOW, batch)
        if is_refused:
            with pytest.raises(RecordsRefused) as refused:
                admit(memoryview(batch), topic, LATEST, NOW)
            assert refused.value.code == ErrorCode.INVALID_TIMESTAMP
            assert refused.value.indexes == [place]
        else:
            _, header = admit(memoryview(batch), topic, LATEST, NOW)
            assert header.max_timestamp == NOW + max(time, 0)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("claimed", [-1, 0, NOW - 1, NOW + 3, NOW + 500, 1 << 62])
def test_4_2_the_largest_timestamp_is_that_of_the_records(codec: int, claimed: int) -> None:
    """Consumers that look offsets up by time go by the header."""
    times = [NOW, NOW + 4, NOW + 2]
    batch = make_batch([(b"k", b"v", time) for time in times], codec=codec)
    wrong = altered(layout.MAX_TIMESTAMP_AT, ">q", claimed, batch)
    same, header = admit(memoryview(wrong), PLAIN, LATEST, NOW)
    assert header == read_header(same)
    assert header.max_timestamp == NOW + 4
    assert header.crc == checksum(same)
    assert bytes(same) == bytes(batch)


@pytest.mark.parametrize("codec", range(5))
def test_4_2_the_timestamp_type_is_the_brokers_to_set(codec: int) -> None:
    batch = fresh(codec=codec)
    claims = altered(layout.ATTRIBUTES_AT, ">h", layout.LOG_APPEND_TIME | codec, batch)
    same, header = admit(memoryview(bytearray(claims)), PLAIN, LATEST, NOW)
    assert header.attributes == codec
    assert bytes(same) == bytes(batch)
    stamped = config(message_timestamp_type="LogAppendTime")
    assert refusal(claims, stamped) == ErrorCode.INVALID_TIMESTAMP


def test_4_2_a_topic_that_trusts_its_producers_goes_by_the_header() -> None:
    topic = config(moldau_batch_validation="header", message_timestamp_after_max_ms=1_000)
    assert refusal(fresh(time=NOW + 1_001), topic) == ErrorCode.INVALID_TIMESTAMP
    wrong = altered(layout.MAX_TIMESTAMP_AT, ">q", NOW, fresh(time=NOW + 1_001))
    assert admit(memoryview(wrong), topic, LATEST, NOW)[1].max_timestamp == NOW


def test_4_2_no_timestamp_is_no_reason() -> None:
    topic = config(message_timestamp_before_max_ms=1_000, message_timestamp_after_max_ms=1_000)
    admit(memoryview(fresh(time=-1)), topic, LATEST, NOW)


def test_5_log_append_time_stamps_the_batch_and_its_checksum() -> None:
    topic = config(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=1)
    batch, header = admit(memoryview(fresh(time=5)), topic, LATEST, NOW)
    assert header.attributes & layout.LOG_APPEND_TIME
    assert header.max_timestamp == NOW
    assert header.crc == checksum(batch)
    assert {record.timestamp for record in read_records(batch, 1 << 20)} == {NOW}


# --- what looks inside ---


@pytest.mark.parametrize("codec", range(5))
def test_6_6_a_compacted_topic_takes_only_records_with_keys(codec: int) -> None:
    topic = config(cleanup_policy="compact")
    keyless = make_batch([(b"k", b"v", NOW), (None, b"v", NOW)], codec=codec)
    assert refusal(keyless, topic) == ErrorCode.INVALID_RECORD
    admit(memoryview(fresh(codec=codec)), topic, LATEST, NOW)


@pytest.mark.parametrize("topic", [PLAIN, config(compression_type="gzip")])
def test_4_2_bytes_that_do_not_unpack_are_an_invalid_record(topic: TopicConfig) -> None:
    broken = with_crc(bytearray(bytes(fresh(codec=4)[:61]) + b"\0" * 10))
    struct.pack_into(">i", broken, 8, len(broken) - 12)
    assert refusal(with_crc(broken), topic) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("source", range(5))
def test_a_codec_of_the_topics_own_recompresses(source: int) -> None:
    topic = config(compression_type="lz4")
    batch, header = admit(memoryview(fresh(codec=source)), topic, LATEST, NOW)
    assert header.attributes & layout.CODEC_MASK == 3
    assert [record.value for record in read_records(batch, 1 << 20)] == [b"v"] * 3


@given(st.binary(max_size=300))
def test_4_2_random_bytes_are_refused_and_nothing_else_happens(data: bytes) -> None:
    assert refusal(bytearray(data)) in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


@given(st.data())
def test_4_2_a_mutated_batch_is_refused_or_sound(data: st.DataObject) -> None:
    batch = fresh(codec=data.draw(st.integers(0, 4)))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        with_crc(batch)
    for topic in (PLAIN, config(cleanup_policy="compact"), config(compression_type="zstd")):
        try:
            _, header = admit(memoryview(bytearray(batch)), topic, LATEST, NOW)
        except KafkaError:
            continue
        assert header.record_count == header.last_offset_delta + 1 > 0
