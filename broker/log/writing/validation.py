"""Validation of a batch before it is appended: Kafka's checks, in Kafka's order.

The header is enough for most of it. With `moldau.batch.validation=full`, the default, the batch is
unpacked and its records are checked too, so that every stored record can be read by consumers. A
compacted topic (every record needs a key) and a topic with a codec of its own (recompression) need
the records in any case.

A batch is unpacked once, to no more than `moldau.batch.unpacked.max.bytes`. Large ones are admitted
in a thread: `is_large` tells by their size, `UnpacksLarge` is raised for those that only turn out
to be large when they are unpacked.
"""

from __future__ import annotations

from crc32c import crc32c

from moldau.broker.errors import ErrorCode, KafkaError, RecordsRefused
from moldau.broker.settings.kafka import TopicConfig
from moldau.broker.wire.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CODEC_NONE,
    CODEC_ZSTD,
    CONTROL,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    CorruptBatch,
    read_header,
    set_max_timestamp,
    stamp_append_time,
)
from moldau.broker.wire.codecs import OutputTooLarge, most_unpacked
from moldau.broker.wire.records import (
    check_records,
    checked_header,
    keyless_records,
    payload_of,
    record_timestamps,
    with_codec,
)

FIRST_VERSION_WITH_ZSTD = 7
KNOWN_CODECS = 5
MAGIC = 2
NO_TIMESTAMP = -1
MANY_RECORDS = 1000
UNPACKED_KEY = "moldau.batch.unpacked.max.bytes"
LARGE = 1 << 17  # bytes: from here on unpacking and checking may take milliseconds
MAX_UNPACKED_AT_ONCE = 1 << 20  # bytes, in the event loop
MAX_REPORTED = 1000  # records that are refused; a batch may have millions
MIRRORED_TEXT = (
    "the topic is a mirror of another cluster's: produce there until `moldau mirror --cut-over` "
    "has made it writable here"
)
BYTES_PER_RECORD = 64  # of what a batch may unpack to, on average
MIN_RECORD_BYTES = 7  # no key, no value, no headers


class UnpacksLarge(Exception):
    """A batch that is not large unpacks to more than may be unpacked in the event loop."""


# A batch, ready to be appended, and its header.
Admitted = tuple[memoryview | bytearray, BatchHeader]


def most_records(unpacked_bytes: int) -> int:
    """How many records a batch may have: each takes memory and time beside its bytes."""
    return unpacked_bytes // BYTES_PER_RECORD


def is_large(records: object, config: TopicConfig) -> bool:
    """Would `admit` hold the event loop for long?"""
    if (
        not isinstance(records, memoryview)
        or len(records) < LARGE
        or not (config.validate_records or config.looks_inside)
    ):
        return False
    header = read_header(records)
    return header.record_count >= MANY_RECORDS or bool(header.attributes & CODEC_MASK)


def unpacked_room(records: object, config: TopicConfig) -> int:
    """How many bytes `admit` may unpack the records to."""
    if not isinstance(records, memoryview) or len(records) < HEADER_SIZE:
        return 0
    codec = HEADER.unpack_from(records)[5] & CODEC_MASK
    return most_unpacked(codec, records[HEADER_SIZE:], max(config.unpacked_max_bytes, len(records)))


def admit(
    records: Buffer | list[Buffer] | None,
    config: TopicConfig,
    version: int,
    now_ms: int,
    *,
    has_transactional_id: bool = False,
    at_once: bool = False,
) -> Admitted:
    """The batch as it may be appended; raises KafkaError when it is refused. Pure.

    `at_once`: in the event loop; raises UnpacksLarge when that would take too long.
    """
    if not isinstance(records, memoryview) or len(records) < HEADER_SIZE:
        raise KafkaError(ErrorCode.INVALID_RECORD, "no record batch")
    batch: memoryview | bytearray = records
    # read_header inlined: this runs for every batch.
    header = tuple.__new__(BatchHeader, HEADER.unpack_from(batch))
    (
        _, length, _, magic, crc, attributes, last_delta, first_ms, max_ms,
        producer, epoch, sequence, count,
    ) = header  # fmt: skip
    size = length + LENGTH_OVERHEAD
    # True for nearly every batch; the checks below find the rule that another one breaks, if any.
    ordinary = (
        size == len(batch)
        and size <= config.max_message_bytes
        and magic == MAGIC
        and 0 <= attributes < CODEC_ZSTD
        and 0 < count == last_delta + 1
        and (attributes != 0 or count * MIN_RECORD_BYTES <= size - HEADER_SIZE)
        and (producer == NO_PRODUCER_ID or (epoch >= 0 and sequence >= 0))
        and not config.mirror_source
    )
    if not ordinary:
        _check_frame(batch, header, config)
    if crc32c(batch[ATTRIBUTES_AT:]) != crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the checksum does not fit")
    if not ordinary:
        _check_header(header, version, config, has_transactional_id)
    if config.validate_records or config.looks_inside:
        batch, header = _look_inside(batch, header, config, now_ms, at_once)
    elif not config.log_append_time and (
        max_ms - now_ms > config.timestamp_after_max_ms
        or now_ms - first_ms > config.timestamp_before_max_ms
    ):
        _check_timestamps(header, config, now_ms)
    if config.log_append_time:
        stamp_append_time(batch, header.attributes, now_ms)
        header = read_header(batch)
    return batch, header


def _check_frame(batch: Buffer, header: BatchHeader, config: TopicConfig) -> None:
    size = len(batch)
    if config.mirror_source:
        # No error that is retried: the producer was moved too early, and shall say so.
        raise KafkaError(ErrorCode.POLICY_VIOLATION, MIRRORED_TEXT)
    if header.magic != MAGIC:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"record format {header.magic}, not {MAGIC}")
    if header.size != size:
        text = f"exactly one whole batch per partition: {header.size} bytes in {size}"
        raise KafkaError(ErrorCode.INVALID_RECORD, text)
    _check_size(size, config)


def _check_size(size: int, config: TopicConfig) -> None:
    if size > config.max_message_bytes:
        text = f"a batch of {size} bytes, max.message.bytes is {config.max_message_bytes}"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)


def _check_transactional(
    header: BatchHeader, config: TopicConfig, has_transactional_id: bool
) -> None:
    if not has_transactional_id:
        text = "a transactional batch in a request without a transactional id"
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, text)
    if header.producer_id == NO_PRODUCER_ID:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a transactional batch without a producer id")
    if config.native:
        # Its records are visible to Redis applications at once. Clients abort the transaction.
        text = "records of native topics cannot be part of a transaction"
        raise KafkaError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, text)


def _check_header(
    header: BatchHeader, version: int, config: TopicConfig, has_transactional_id: bool
) -> None:
    attributes = header.attributes
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        text = f"{header.record_count} records, last offset delta {header.last_offset_delta}"
        raise KafkaError(ErrorCode.INVALID_RECORD, text)
    if attributes & CONTROL:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients do not write control batches")
    if attributes & TRANSACTIONAL:
        _check_transactional(header, config, has_transactional_id)
    codec = attributes & CODEC_MASK
    if codec == 0 and header.record_count * MIN_RECORD_BYTES > header.size - HEADER_SIZE:
        # Nothing else counts the records, and each takes an offset.
        text = f"{header.record_count} records in {header.size} bytes"
        raise KafkaError(ErrorCode.INVALID_RECORD, text)
    if codec >= KNOWN_CODECS:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {codec}")
    if codec == CODEC_ZSTD and version < FIRST_VERSION_WITH_ZSTD:
        code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        raise KafkaError(code, "zstd needs Produce v7 or above")
    if header.producer_id != NO_PRODUCER_ID and (
        header.base_sequence < 0 or header.producer_epoch < 0
    ):
        raise KafkaError(ErrorCode.INVALID_RECORD, "a producer id without epoch or sequence")


def _check_timestamps(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """Check the timestamps in the header, taking the first for the smallest."""
    if config.log_append_time or header.max_timestamp == NO_TIMESTAMP:
        return
    if header.max_timestamp - now_ms > config.timestamp_after_max_ms:
        text = (
            f"timestamp {header.max_timestamp} is more than message.timestamp.after.max.ms "
            f"({config.timestamp_after_max_ms}) ahead"
        )
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, text)
    if now_ms - header.base_timestamp > config.timestamp_before_max_ms:
        text = (
            f"timestamp {header.base_timestamp} is more than message.timestamp.before.max.ms "
            f"({config.timestamp_before_max_ms}) ago"
        )
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, text)


def _look_inside(
    batch: memoryview | bytearray,
    header: BatchHeader,
    config: TopicConfig,
    now_ms: int,
    at_once: bool,
) -> Admitted:
    """Everything that needs the records: they are unpacked for it once."""
    limit, count = config.unpacked_max_bytes, header.record_count
    if count * BYTES_PER_RECORD > limit:
        text = f"a batch of {count} records, at most {most_records(limit)}"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{text} ({UNPACKED_KEY} / 64)")
    if at_once and limit > MAX_UNPACKED_AT_ONCE:
        limit = MAX_UNPACKED_AT_ONCE
    try:
        if header.attributes & CODEC_MASK:
            payload = payload_of(batch, header, limit)
        else:
            payload = bytes(batch[HEADER_SIZE:])
        if not config.validate_records:
            _check_timestamps(header, config, now_ms)
        elif config.log_append_time:
            _check_to_be_stamped(header, payload)
        else:
            first_ms, max_ms = header.base_timestamp, header.max_timestamp
            oldest_ms = now_ms - config.timestamp_before_max_ms
            if not (
                check_records(count, payload, max_ms - first_ms, none_before=oldest_ms > 0)
                and max_ms - now_ms <= config.timestamp_after_max_ms
                and first_ms >= oldest_ms
                and not header.attributes & LOG_APPEND_TIME
            ):
                header = _check_each_timestamp(batch, header, payload, config, now_ms)
        if config.looks_inside:
            return _as_stored(batch, header, payload, config)
    except OutputTooLarge as fault:
        if limit != config.unpacked_max_bytes:
            raise UnpacksLarge from None
        # Java splits the batch and sends its parts.
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{fault} ({UNPACKED_KEY})") from None
    except CorruptBatch as fault:
        # Not CORRUPT_MESSAGE, which clients retry: the batch would come again as it is.
        raise KafkaError(ErrorCode.INVALID_RECORD, str(fault)) from None
    return batch, header


def _check_to_be_stamped(header: BatchHeader, payload: bytes) -> None:
    """Check a batch that gets the broker's timestamp: those of its records do not count."""
    check_records(header.record_count, payload)
    if header.attributes & LOG_APPEND_TIME:
        text = "producers must not set the timestamp type LogAppendTime"
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, text)


def _check_each_timestamp(
    batch: memoryview | bytearray,
    header: BatchHeader,
    payload: bytes,
    config: TopicConfig,
    now_ms: int,
) -> BatchHeader:
    """The header may be wrong: as in Kafka the records decide, and it is corrected."""
    oldest_ms = now_ms - config.timestamp_before_max_ms
    newest_ms = now_ms + config.timestamp_after_max_ms
    largest = NO_TIMESTAMP
    refused: list[int] = []
    for index, timestamp in enumerate(record_timestamps(header, payload)):
        if timestamp > largest:
            largest = timestamp
        if not oldest_ms <= timestamp <= newest_ms and timestamp != NO_TIMESTAMP:
            refused.append(index)
            if len(refused) >= MAX_REPORTED:
                break
    if refused:
        bounds = f"{oldest_ms} (message.timestamp.before.max.ms) to {newest_ms} (…after.max.ms)"
        raise RecordsRefused(
            ErrorCode.INVALID_TIMESTAMP,
            f"records have timestamps out of range: not from {bounds}",
            refused,
            f"the timestamp is not from {bounds}",
        )
    attributes = header.attributes & ~LOG_APPEND_TIME
    if largest != header.max_timestamp or attributes != header.attributes:
        set_max_timestamp(batch, attributes, largest)
        header = read_header(batch)
    return header


def _as_stored(
    batch: memoryview | bytearray, header: BatchHeader, payload: bytes, config: TopicConfig
) -> Admitted:
    """Require keys if the topic is compacted, and recompress the batch as the topic asks."""
    header = checked_header(batch)
    if config.compact and (keyless := keyless_records(header, payload, MAX_REPORTED)):
        raise RecordsRefused(
            ErrorCode.INVALID_RECORD,
            "a compacted topic takes only records with keys",
            keyless,
            "the record has no key, and its topic is compacted",
        )
    # The records of a native topic become entries of their own.
    codec = CODEC_NONE if config.native else config.codec
    if codec is not None and codec != header.attributes & CODEC_MASK:
        batch = with_codec(header, payload, codec, config.codec_level)
        header = read_header(batch)
        if not config.native:
            _check_size(len(batch), config)  # the other codec may compress worse
    return batch, header
