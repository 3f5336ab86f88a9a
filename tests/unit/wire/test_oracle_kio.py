"""Our codecs against kio's: every API, every version, requests and responses.

kio holds a generated class for each message of each version and an independent serializer (its
reader is native code). Each random message is encoded by one side and decoded by the other, both
ways, and compared field by field.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import struct
import typing
import uuid
from typing import Any

from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from moldau.broker.wire.schema import NO_UUID, Field, Message
from tests.support.raw.wire_messages import (
    CASES,
    Case,
    for_each,
    one_of_each_layout,
    random_messages,
)
from tests.unit.wire.wire_oracles import NOT_IN_KIO, kafkas_fields, without_ours

# A version with the layout of an earlier one has the same code, so a few messages show its fields.
MESSAGES_PER_LAYOUT = 12
MESSAGES_PER_VERSION = 2
ERROR_CODES = sorted(code.value for code in ErrorCode)
EPOCH = datetime.datetime.fromtimestamp(0, tz=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)
LONGEST_TIMEDELTA_MS = 1 << 40
LAST_DATETIME_SECOND = 253_402_300_799  # the year 9999 ends

KNOWN_CASES = [case for case in CASES if (case.api.key, case.version) not in NOT_IN_KIO]
LAYOUTS = one_of_each_layout(KNOWN_CASES)


def theirs_for(case: Case) -> Any:
    load = load_request_schema if case.is_request else load_response_schema
    return load(case.api.key, case.version)


def same_name(ours: str, theirs: str) -> bool:
    """kio names a span of time without its unit: `max_wait_ms` is `max_wait`."""
    return theirs in (ours, ours.removesuffix("_ms"))


def pairs(ours: type[Message], theirs: Any, version: int) -> list[tuple[Field, Any]]:
    """Our fields of a version beside theirs, in the order in which both declare them."""
    mine = kafkas_fields(ours, version)
    both = list(zip(mine, dataclasses.fields(theirs), strict=True))
    for our_field, field in both:
        assert same_name(our_field.name, field.name), f"{our_field.name} beside {field.name}"
        tag = our_field.rule.tag if our_field.tagged(version) else None
        assert field.metadata.get("tag") == tag, field.name
    return both


def structure(field: Any) -> Any:
    """The class of the structure in a field, in an array, an optional, or on its own."""
    kind = field.type
    while typing.get_args(kind):
        kind = next(a for a in typing.get_args(kind) if a is not type(None) and a is not ...)
    return kind


def fit(message: Message, theirs: Any, version: int) -> Message:
    """Replace what kio cannot hold: error codes it does not know, times outside its calendar."""
    for ours, field in pairs(type(message), theirs, version):
        value = getattr(message, ours.name)
        kind = field.metadata.get("kafka_type")
        if ours.kind == "struct" and value is not None:
            for item in value if ours.is_array else [value]:
                fit(item, structure(field), version)
        elif kind == "error_code":
            setattr(message, ours.name, ERROR_CODES[value % len(ERROR_CODES)])
        elif kind == "timedelta_i64":
            # kio computes with floats: beyond this a millisecond may get lost.
            setattr(message, ours.name, value % LONGEST_TIMEDELTA_MS)
        elif kind == "datetime_i64":
            # kio takes whole seconds, and -1 for none only where it declares the field optional.
            absent = type(None) in typing.get_args(field.type) and value % 3 == 0
            time = -1 if absent else value % LAST_DATETIME_SECOND * 1000
            setattr(message, ours.name, time)
    return message


def to_theirs(message: Message, theirs: Any, version: int) -> Any:
    return theirs(
        **{
            field.name: _give(ours, field, getattr(message, ours.name), version)
            for ours, field in pairs(type(message), theirs, version)
        }
    )


def _give(ours: Field, field: Any, value: Any, version: int) -> Any:
    if ours.kind == "struct":
        assert ours.struct is not None
        theirs = structure(field)
        if ours.is_array:
            return value if value is None else tuple(to_theirs(v, theirs, version) for v in value)
        if value is None:
            # Unset, where kio holds the structure with its defaults.
            return to_theirs(ours.struct(), theirs, version) if ours.tagged(version) else None
        return to_theirs(value, theirs, version)
    if value is None:
        return None
    if ours.kind == "uuid":
        return None if value == NO_UUID else uuid.UUID(bytes=value)
    if ours.kind == "int8_array":
        return struct.unpack(f">{len(value)}b", value)
    match field.metadata["kafka_type"]:
        case "error_code":
            return ErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return value * MILLISECOND
        case "datetime_i64":
            return None if value == -1 else EPOCH + value * MILLISECOND
    return tuple(value) if ours.is_array else value


def to_ours(theirs: Any, message: type[Message], version: int) -> Message:
    return message(
        **{
            ours.name: _take(ours, field, getattr(theirs, field.name), version)
            for ours, field in pairs(message, type(theirs), version)
        }
    )


def _take(ours: Field, field: Any, value: Any, version: int) -> Any:
    kind = field.metadata.get("kafka_type")
    if kind == "datetime_i64":
        return -1 if value is None else (value - EPOCH) // MILLISECOND
    if ours.kind == "uuid":
        return NO_UUID if value is None else value.bytes
    if value is None:
        return None
    if ours.kind == "struct":
        assert ours.struct is not None
        if ours.is_array:
            return [to_ours(item, ours.struct, version) for item in value]
        whole = to_ours(value, ours.struct, version)
        # Unset is None for us, and a structure of defaults for kio.
        return None if ours.tagged(version) and whole == ours.struct() else whole
    if kind == "error_code":
        return value.value
    if ours.kind == "int8_array":
        return struct.pack(f">{len(value)}b", *value)
    if kind in ("timedelta_i32", "timedelta_i64"):
        return value // MILLISECOND
    return list(value) if ours.is_array else value


def how_many(case: Case) -> int:
    return MESSAGES_PER_LAYOUT if case in LAYOUTS else MESSAGES_PER_VERSION


def messages(case: Case) -> list[Message]:
    theirs = theirs_for(case)
    return [
        # kio refuses tags it does not know; kafka-python skips them, as Kafka does.
        fit(without_ours(message), theirs, case.version)
        for message in random_messages(case, how_many(case), seed=1)
    ]


def test_every_case_is_known_or_listed_as_unknown() -> None:
    for case in CASES:
        try:
            is_known = bool(theirs_for(case))
        except (UnknownAPIKey, UnknownEntity):
            is_known = False
        assert is_known != ((case.api.key, case.version) in NOT_IN_KIO), str(case)


@for_each(KNOWN_CASES)
def test_they_read_what_we_write(case: Case) -> None:
    theirs = theirs_for(case)
    assert theirs.__flexible__ == case.flexible
    read = entity_reader(theirs)
    for message in messages(case):
        encoded = case.encode(message)
        decoded, size = read(encoded, 0)
        assert size == len(encoded)
        assert to_ours(decoded, case.message, case.version) == message


@for_each(KNOWN_CASES)
def test_we_read_what_they_write(case: Case) -> None:
    theirs = theirs_for(case)
    write = entity_writer(theirs)
    for message in messages(case):
        buffer = io.BytesIO()
        write(buffer, to_theirs(message, theirs, case.version))
        assert case.decode(buffer.getvalue()) == message
        assert case.encode(message) == buffer.getvalue()
