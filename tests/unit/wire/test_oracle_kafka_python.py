"""Our codecs against kafka-python's: every API, every version, requests and responses.

kafka-python reads Kafka's own message definitions and generates its codecs from them, so its
declarations share nothing with ours. Each random message is encoded by one side and decoded by
the other, both ways, and compared field by field; then whole frames with their headers.
"""

from __future__ import annotations

import uuid
from typing import Any

from moldau.broker.wire.apis import ApiKey
from moldau.broker.wire.frame import (
    read_request_header,
    read_response,
    request_frame,
    response_frame,
)
from moldau.broker.wire.schema import NO_UUID, Field, Message
from tests.support.raw.kafka_python import PROTOCOL
from tests.support.raw.wire_messages import (
    CASES,
    Case,
    for_each,
    one_of_each_layout,
    random_messages,
)
from tests.unit.wire.wire_oracles import NOT_IN_KAFKA_PYTHON, kafkas_fields, without_ours

# A version with the layout of an earlier one has the same code, so a few messages show its fields.
MESSAGES_PER_LAYOUT = 12
MESSAGES_PER_VERSION = 2
KNOWN_CASES = [case for case in CASES if (case.api.key, case.version) not in NOT_IN_KAFKA_PYTHON]
LAYOUTS = one_of_each_layout(KNOWN_CASES)


def theirs_for(case: Case) -> Any:
    return PROTOCOL[case.api.key, case.side]


def pairs(ours: type[Message], struct: Any, version: int) -> list[tuple[Field, Any]]:
    """Our fields of a version beside theirs, in the order in which both declare them."""
    mine = kafkas_fields(ours, version)
    other = [field for field in struct.fields.values() if field.for_version_q(version)]
    # kafka-python calls every bit field of permitted operations `authorized_operations`.
    assert [field.name for field in mine] == [
        our_field.name if their_field.name == "authorized_operations" else their_field.name
        for our_field, their_field in zip(mine, other, strict=True)
    ]
    return list(zip(mine, other, strict=True))


def to_theirs(message: Message, struct: Any, version: int) -> dict[str, Any]:
    return {
        field.name: _give(ours, field, getattr(message, ours.name), version)
        for ours, field in pairs(type(message), struct, version)
    }


def _give(ours: Field, field: Any, value: Any, version: int) -> Any:
    if value is None:
        return None
    if ours.is_array and ours.kind == "struct":
        return [
            field.data_class(version=version, **to_theirs(item, field.array_of, version))
            for item in value
        ]
    if ours.kind == "struct":
        return field.data_class(version=version, **to_theirs(value, field, version))
    if ours.kind == "uuid":
        return None if value == NO_UUID else uuid.UUID(bytes=value)
    if field.type_str == "bitfield":
        return {bit for bit in range(32) if value & 0xFFFFFFFF & (1 << bit)}
    return value


def to_ours(theirs: Any, message: type[Message], struct: Any, version: int) -> Message:
    values = {
        ours.name: _take(ours, field, getattr(theirs, field.name), version)
        for ours, field in pairs(message, struct, version)
    }
    return message(**values)


def _take(ours: Field, field: Any, value: Any, version: int) -> Any:
    if ours.kind == "uuid":
        return NO_UUID if value is None else value.bytes
    if field.type_str == "bitfield":
        bits = sum(1 << bit for bit in ({31} if value is None else value))
        return bits - (1 << 32) if bits >> 31 else bits
    if value is None:
        return None
    if ours.kind == "struct":
        assert ours.struct is not None
        if ours.is_array:
            return [to_ours(item, ours.struct, field.array_of, version) for item in value]
        return to_ours(value, ours.struct, field, version)
    return value


def comparable(case: Case, message: Message) -> Message:
    if case.api.key == ApiKey.API_VERSIONS and not case.is_request:
        # kafka-python reads an ApiVersions response with an error in the layout of v0, whatever
        # was asked for: that is how a broker answers a version it does not know.
        message.error_code = 0  # type: ignore[attr-defined]
    return message


def how_many(case: Case) -> int:
    return MESSAGES_PER_LAYOUT if case in LAYOUTS else MESSAGES_PER_VERSION


def messages(case: Case) -> list[Message]:
    return [comparable(case, message) for message in random_messages(case, how_many(case))]


def as_theirs(case: Case, message: Message) -> Any:
    theirs = theirs_for(case)
    return theirs(version=case.version, **to_theirs(message, theirs._struct, case.version))


def test_every_case_is_known_or_listed_as_unknown() -> None:
    for case in CASES:
        theirs = PROTOCOL.get((case.api.key, case.side))
        # Versions Kafka 4 dropped stay in its definitions, and kafka-python still speaks them.
        is_known = theirs is not None and theirs.min_version <= case.version <= theirs.max_version
        assert is_known != ((case.api.key, case.version) in NOT_IN_KAFKA_PYTHON), str(case)


@for_each(KNOWN_CASES)
def test_they_read_what_we_write(case: Case) -> None:
    theirs = theirs_for(case)
    assert theirs.flexible_version_q(case.version) == case.flexible
    for message in messages(case):
        decoded = theirs.decode(case.encode(message), version=case.version)
        assert to_ours(decoded, case.message, theirs._struct, case.version) == without_ours(message)


@for_each(KNOWN_CASES)
def test_we_read_what_they_write(case: Case) -> None:
    for message in map(without_ours, messages(case)):
        encoded = bytes(as_theirs(case, message).encode())
        assert case.decode(encoded) == message
        # Both write the one canonical form, so this also proves that they read all of ours.
        assert case.encode(message) == encoded


@for_each(KNOWN_CASES)
def test_whole_frames_with_headers(case: Case) -> None:
    message = without_ours(messages(case)[-1])
    theirs = as_theirs(case, message)
    if case.is_request:
        for client_id in ("rdkafka", "", "žluťoučký", None):
            theirs.with_header(correlation_id=-7, client_id=client_id)
            frame = bytes(theirs.encode(header=True, framed=True))
            assert request_frame(case.api, case.version, -7, client_id, message) == frame
            header = read_request_header(frame[4:])
            assert (header.api_key, header.api_version) == (case.api.key, case.version)
            assert (header.correlation_id, header.client_id) == (-7, client_id)
            assert header.api is case.api
            assert case.decode(frame[4 + header.body_at :]) == message
    else:
        theirs.with_header(correlation_id=1 << 30)
        frame = bytes(theirs.encode(header=True, framed=True))
        assert b"".join(response_frame(case.api, case.version, 1 << 30, message)) == frame
        assert read_response(case.api, case.version, frame[4:]) == (1 << 30, message)
