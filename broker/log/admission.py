"""Validation of a batch before it is appended: Kafka's checks, in Kafka's order.

The header is enough for most of it. With `moldau.batch.validation=full`, the default, the batch is
unpacked and its records are checked too, so that none is stored that consumers could not read. A
compacted topic (every record needs a key) and a topic with a codec of its own (recompression) need
the records in any case. Large batches are better admitted in a thread: see `is_large`.
"""

from __future__ import annotations

from crc32c import crc32c

from broker.errors import ErrorCode, KafkaError, RecordsRefused
from broker.settings.kafka import TopicConfig
from broker.wire.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CODEC_ZSTD,
    CONTROL,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    CorruptBatch,
    read_header,
    stamp_append_time,
)
from broker.wire.records import check_records, keyless_records, payload_of, recompress

FIRST_VERSION_WITH_ZSTD = 7
KNOWN_CODECS = 5
MAGIC = 2
NO_TIMESTAMP = -1
MANY_RECORDS = 1000
LARGE = 1 << 17  # bytes: from here on unpacking and checking may take milliseconds
MIN_RECORD_BYTES = 7  # no key, no value, no headers


# A batch, ready to be appended, and its header.
Admitted = tuple[memoryview | bytearray, BatchHeader]


def is_large(records: object, config: TopicConfig) -> bool:
    """Would `admit` hold the event loop for long?"""
    if (
        not isinstance(records, memoryview)
        or len(records) < LARGE
        or not (config.validate_records or config.compact or config.codec is not None)
    ):
        return False
    header = read_header(records)
    return header.record_count >= MANY_RECORDS or bool(header.attributes & CODEC_MASK)


def admit(
    records: Buffer | list[Buffer] | None,
    config: TopicConfig,
    version: int,
    now_ms: int,
    *,
    has_transactional_id: bool = False,
) -> Admitted:
    """The batch as it may be appended; raises KafkaError when it is refused. Pure."""
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
    )
    if not ordinary:
        _check_frame(batch, header, config)
    if crc32c(batch[ATTRIBUTES_AT:]) != crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the checksum does not fit")
    if not ordinary:
        _check_header(header, version, config, has_transactional_id)
    if not config.log_append_time and (
        max_ms - now_ms > config.timestamp_after_max_ms
        or now_ms - first_ms > config.timestamp_before_max_ms
    ):
        _check_timestamps(header, config, now_ms)
    if config.validate_records and not config.native:
        _check_records(batch, header, config)
    if config.compact or config.codec is not None:
        batch, header = _look_inside(batch, header, config)
    if config.log_append_time:
        stamp_append_time(batch, header.attributes, now_ms)
        header = read_header(batch)
    return batch, header


def _check_frame(batch: Buffer, header: BatchHeader, config: TopicConfig) -> None:
    size = len(batch)
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
    """From the header: the largest timestamp is exact, the first is taken for the smallest."""
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


def _unpacked_limit(config: TopicConfig) -> int:
    """Records may unpack to more than a batch may be, within reason."""
    return 64 * max(config.max_message_bytes, 1 << 20)


def _check_records(batch: Buffer, header: BatchHeader, config: TopicConfig) -> None:
    try:
        check_records(header.record_count, payload_of(batch, header, _unpacked_limit(config)))
    except CorruptBatch as fault:
        # Not CORRUPT_MESSAGE, which clients retry: the batch would come again as it is.
        raise KafkaError(ErrorCode.INVALID_RECORD, str(fault)) from None


def _look_inside(
    batch: memoryview | bytearray, header: BatchHeader, config: TopicConfig
) -> tuple[memoryview | bytearray, BatchHeader]:
    limit = _unpacked_limit(config)
    try:
        if config.compact and (keyless := keyless_records(batch, limit)):
            raise RecordsRefused(
                ErrorCode.INVALID_RECORD,
                "a compacted topic takes only records with keys",
                keyless,
                "the record has no key, and its topic is compacted",
            )
        if config.codec is not None and config.codec != header.attributes & CODEC_MASK:
            smaller = recompress(batch, config.codec, config.codec_level, limit)
            batch = smaller if isinstance(smaller, bytearray) else bytearray(smaller)
            header = read_header(batch)
            _check_size(len(batch), config)  # the other codec may compress worse
    except CorruptBatch as fault:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(fault)) from None
    return batch, header
