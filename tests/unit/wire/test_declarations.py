"""Our declarations against Kafka's message definitions, where those lie beside the repository.

Compared field by field for each version served: order, type, nullability, tag and default. The
definitions are not part of the repository; without them, or without that of a message, these tests
are skipped, and the two oracles still check every message.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from moldau.broker.wire.apis import APIS, NOT_SERVED, Api, lookup
from moldau.broker.wire.schema import NO_UUID, Field, Message, fields_of
from tests.support.raw.wire_messages import CASES, LAYOUTS, Case, for_each, layout
from tests.unit.wire.wire_oracles import NOT_IN_KAFKA_PYTHON, NOT_IN_KIO, OURS, kafkas_fields

DECLARED = [*APIS.values(), *NOT_SERVED]
DEFINITIONS = Path(__file__).parents[4] / "shared" / "kafka-messages"
NEEDS_DEFINITIONS = pytest.mark.skipif(
    not DEFINITIONS.is_dir(), reason=f"Kafka's message definitions are not in {DEFINITIONS}"
)

# API key -> the highest version we serve, and why it is not the newest one defined.
BELOW_NEWEST = {
    22: (5, "InitProducerId v6 is marked unstable: two-phase commit is not released"),
    57: (1, "UpdateFeatures v2 has one error for all features, and Java takes the highest"),
}


class Declared(NamedTuple):
    """A field in one version, as both sides describe it."""

    name: str
    kind: str
    nullable: bool
    tag: int | None
    default: Any
    fields: list[Declared] | None


def definition(name: str) -> Any:
    path = DEFINITIONS / f"{name}.json"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    return json.loads(path.read_text())


def versions(text: str) -> range:
    if text == "none":
        return range(0)
    low, _, high = text.partition("-")
    if low.endswith("+"):
        return range(int(low[:-1]), 1 << 15)
    return range(int(low), int(high or low) + 1)


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def ours(message: type[Message], version: int) -> list[Declared]:
    result = []
    for field in kafkas_fields(message, version):
        tagged = field.tagged(version)
        # A tagged structure that is unset is None for us; on the wire it has no null.
        is_struct = field.kind == "struct" and not field.is_array
        unset = tagged and is_struct
        result.append(
            Declared(
                field.name,
                "[]int8" if field.kind == "int8_array" else "[]" * field.is_array + field.kind,
                field.nullable(version) and not unset,
                field.rule.tag if tagged else None,
                _default(field, is_struct),
                ours(field.struct, version) if field.struct is not None else None,
            )
        )
    return result


def _default(field: Field, is_struct: bool) -> Any:
    if is_struct:
        return None  # Kafka's structures have no default
    return [] if field.kind == "int8_array" else field.default


def kafkas(definition: Any, version: int, common: dict[str, Any] | None = None) -> list[Declared]:
    if common is None:
        common = {entry["name"]: entry for entry in definition.get("commonStructs", [])}
    result = []
    for field in definition["fields"]:
        if version not in versions(field["versions"]):
            continue
        array, name = field["type"].startswith("[]"), field["type"].removeprefix("[]")
        struct = field if "fields" in field else common.get(name)
        tagged = "tag" in field and version in versions(field["taggedVersions"])
        result.append(
            Declared(
                snake_case(field["name"]),
                "[]" * array + ("struct" if struct else name),
                version in versions(field.get("nullableVersions", "none")),
                field["tag"] if tagged else None,
                default_of(field, array, name),
                kafkas(struct, version, common) if struct else None,
            )
        )
    return result


def default_of(field: Any, array: bool, kind: str) -> Any:
    value = field.get("default", "")
    if value == "null" or kind == "records":
        return None
    if array:
        return []
    if kind == "bool":
        return value in ("true", True)
    if kind == "string":
        return value
    if kind == "bytes":
        return b""
    if kind == "uuid":
        return NO_UUID
    if kind[0].isupper():
        return None  # a structure: unset
    return float(value or 0) if kind == "float64" else int(str(value) or "0", 0)


@NEEDS_DEFINITIONS
@for_each(CASES)
def test_fields_are_those_of_kafka(case: Case) -> None:
    theirs = definition(case.message.__name__)
    assert ours(case.message, case.version) == kafkas(theirs, case.version)


@NEEDS_DEFINITIONS
@pytest.mark.parametrize("api", DECLARED, ids=lambda api: api.name)
def test_keys_versions_and_flexibility_are_those_of_kafka(api: Api) -> None:
    for side in ("Request", "Response"):
        theirs = definition(api.name + side)
        assert theirs["apiKey"] == api.key
        valid = versions(theirs["validVersions"])
        assert (api.lowest, api.highest) == (
            valid[0],
            BELOW_NEWEST.get(api.key, (valid[-1], ""))[0],
        )
        flexible = versions(theirs["flexibleVersions"])
        for version in range(api.lowest, api.highest + 1):
            assert api.is_flexible(version) == (version in flexible)


@NEEDS_DEFINITIONS
def test_every_exception_is_still_one() -> None:
    for key, (highest, _) in BELOW_NEWEST.items():
        if key in APIS:
            newest = versions(definition(f"{APIS[key].name}Request")["validVersions"])[-1]
            assert highest < newest


def test_every_case_is_known_to_an_oracle() -> None:
    assert not NOT_IN_KAFKA_PYTHON.keys() & NOT_IN_KIO.keys()


def test_one_layout_is_one_code() -> None:
    """So fuzzing one version of each layout is enough."""
    known = {layout(case): case.codec for case in LAYOUTS}
    for case in CASES:
        for ours, other in zip(case.codec, known[layout(case)], strict=True):
            assert code_of(ours) == code_of(other), str(case)


def code_of(function: Any) -> tuple[Any, ...]:
    code = function.__code__
    return (code.co_code, code.co_names, [each for each in code.co_consts if each is not None])


def test_fields_of_our_own_are_tagged_out_of_kafkas_way() -> None:
    """Kafka numbers its tags from 0 on: other clients skip ours, now and later."""
    for message, name in OURS:
        (field,) = [field for field in fields_of(message) if field.name == name]
        assert field.tagged(field.rule.since)
        assert field.rule.tag >= 100


def test_messages_are_named_after_their_api() -> None:
    for api in DECLARED:
        assert api.request.__name__ == f"{api.name}Request"
        assert api.response.__name__ == f"{api.name}Response"


def test_what_is_not_served_is_not_advertised() -> None:
    """No request of it is understood: not by a worker, not by a router."""
    for api in NOT_SERVED:
        assert api.key not in APIS
        for version in range(api.lowest, api.highest + 1):
            assert lookup(api.key, version) is None
