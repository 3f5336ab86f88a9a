"""Writes the source of a message's decoder for one version.

Every length and count is checked against what is left of the frame before anything is allocated,
and the elements of all arrays together against a limit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from moldau.broker.wire import primitives
from moldau.broker.wire.codegen.source import FIXED, Source, default_value
from moldau.broker.wire.primitives import MalformedMessage
from moldau.broker.wire.schema import Field, Message, fields_of


def decoder(message: type[Message], version: int, flexible: bool) -> Source:
    src = Source(version, flexible)
    src.names.update(
        Malformed=MalformedMessage,
        StructError=struct.error,
        read_uvarint=primitives.read_uvarint,
        skip_tag=primitives.skip_tag,
        skip_tags=primitives.skip_tags,
        too_long=primitives.too_long,
        too_many=primitives.too_many,
        unpack_ints=primitives.unpack_ints,
    )
    src("end = len(buf)")
    if _has(message, version, lambda field: field.is_array):
        src(f"left = {primitives.MAX_ELEMENTS}")
    if _has(message, version, lambda field: field.kind == "records"):
        src("view = memoryview(buf)")
    src("try:")
    src.depth += 1
    _decode_struct(src, message, "result")
    src("return result, pos")
    src.depth -= 1
    src("except (StructError, IndexError, UnicodeDecodeError) as fault:")
    src("    raise Malformed(str(fault)) from None")
    return src


def _has(message: type[Message], version: int, wanted: Callable[[Field], bool]) -> bool:
    """Check whether a message of this version has such a field anywhere in it."""
    return any(
        wanted(field) or (field.struct is not None and _has(field.struct, version, wanted))
        for field in fields_of(message)
        if field.present(version)
    )


def _decode_struct(src: Source, message: type[Message], target: str) -> None:
    fields = fields_of(message)
    values: dict[str, str] = {}
    run: list[tuple[Field, str]] = []

    def flush() -> None:
        if not run:
            return
        letters = "".join(FIXED[field.kind][0] for field, _ in run)
        size = sum(FIXED[field.kind][1] for field, _ in run)
        targets = ", ".join(name for _, name in run)
        src(f"{targets}, = {src.packer(letters, 'unpack_from')}(buf, pos)")
        src(f"pos += {size}")
        run.clear()

    for field in fields:
        if not field.present(src.version) or field.tagged(src.version):
            continue
        values[field.name] = name = src.fresh(field.name)
        if field.kind in FIXED and not field.is_array:
            run.append((field, name))
        else:
            flush()
            _decode_field(src, field, name)
    flush()
    if src.flexible:
        _decode_tags(src, [f for f in fields if f.present(src.version)], values)
    arguments = [values.get(field.name) or default_value(src, field) for field in fields]
    src(f"{target} = {src.bind('T', message)}({', '.join(arguments)})")


def _decode_tags(src: Source, fields: list[Field], values: dict[str, str]) -> None:
    tagged = [field for field in fields if field.tagged(src.version)]
    for field in tagged:
        values[field.name] = name = src.fresh(field.name)
        src(f"{name} = {default_value(src, field)}")
    count = src.fresh("tags")
    src(f"{count} = buf[pos]")
    src("pos += 1")
    src(f"if {count}:")
    src.depth += 1
    src(f"if {count} > 127: {count}, pos = read_uvarint(buf, pos - 1)")
    if not tagged:
        src(f"pos = skip_tags(buf, pos, end, {count})")
    else:
        tag, after = src.fresh("tag"), src.fresh("after")
        src(f"for _ in range({count}):")
        src.depth += 1
        src(f"{tag}, pos, {after} = skip_tag(buf, pos, end)")
        for field in tagged:
            src(f"if {tag} == {field.rule.tag}:")
            src.depth += 1
            _decode_field(src, field, values[field.name])
            src(f"if pos > {after}: raise Malformed('tagged field {field.name} overruns')")
            src.depth -= 1
        src(f"pos = {after}")
        src.depth -= 1
    src.depth -= 1


def _decode_field(src: Source, field: Field, name: str) -> None:
    nullable = field.nullable(src.version)
    if field.is_array:
        _decode_array(src, field, name, nullable)
    elif field.kind == "struct":
        assert field.struct is not None
        if nullable and not field.tagged(src.version):
            src("pos += 1")
            src(f"if buf[pos - 1] > 127: {name} = None")
            src("else:")
            src.depth += 1
            _decode_struct(src, field.struct, name)
            src.depth -= 1
        else:
            _decode_struct(src, field.struct, name)
    elif field.kind in FIXED:
        letter, size = FIXED[field.kind]
        src(f"{name}, = {src.packer(letter, 'unpack_from')}(buf, pos)")
        src(f"pos += {size}")
    else:
        _decode_blob(src, field.kind, field.name, name, nullable)


def _decode_length(src: Source, size: str, letter: str) -> None:
    """Decode the length or count before a string, bytes or array; -1 stands for null."""
    if src.flexible:
        src(f"{size} = buf[pos] - 1")
        src("pos += 1")
        src(f"if {size} > 126:")
        src(f"    {size}, pos = read_uvarint(buf, pos - 1)")
        src(f"    {size} -= 1")
        if letter == "h":  # as in Kafka: whatever came in goes out in every version
            too_long = f"a string of ' + str({size}) + ' bytes"
            src(f"    if {size} > {primitives.MAX_STRING}: raise Malformed('{too_long}')")
    else:
        src(f"{size}, = {src.packer(letter, 'unpack_from')}(buf, pos)")
        src(f"pos += {2 if letter == 'h' else 4}")


def _reject_null(src: Source, size: str, what: str, nullable: bool) -> None:
    bound = -1 if nullable else 0
    src(f"if {size} < {bound}: raise Malformed('{what}: length ' + str({size}))")


def _decode_blob(src: Source, kind: str, what: str, name: str, nullable: bool) -> None:
    size, after = src.fresh("n"), src.fresh("e")
    _decode_length(src, size, "h" if kind == "string" else "i")
    src(f"{after} = pos + {size}")
    src(f"if {size} < 0:")
    src.depth += 1
    _reject_null(src, size, what, nullable)
    src(f"{name} = None")
    src.depth -= 1
    src(f"elif {after} > end: raise too_long({what!r}, {size}, end - pos)")
    src("else:")
    src.depth += 1
    if kind == "string":
        src(f"{name} = buf[pos:{after}].decode()")
    elif kind in ("bytes", "int8_array"):
        src(f"{name} = bytes(buf[pos:{after}])")
    else:
        src(f"{name} = view[pos:{after}]")
    src(f"pos = {after}")
    src.depth -= 1


def _decode_array(src: Source, field: Field, name: str, nullable: bool) -> None:
    count = src.fresh("c")
    _decode_length(src, count, "i")
    least = _least_size(src, field)
    src(f"if {count} < 0:")
    src.depth += 1
    _reject_null(src, count, field.name, nullable)
    src(f"{name} = None")
    src.depth -= 1
    src(f"elif {count} * {least} > end - pos: raise too_long({field.name!r}, {count}, end - pos)")
    src("else:")
    src.depth += 1
    src(f"left -= {count}")
    src(f"if left < 0: raise too_many({field.name!r}, {count})")
    if field.kind in ("int16", "int32", "int64"):
        letter, size = FIXED[field.kind]
        src(f"{name} = unpack_ints({letter!r}, {size}, buf, pos, {count})")
        src(f"pos += {size} * {count}")
    else:
        item = src.fresh("item")
        src(f"{name} = []")
        src(f"for _ in range({count}):")
        src.depth += 1
        _decode_field(src, field._replace(is_array=False, optional=False), item)
        src(f"{name}.append({item})")
        src.depth -= 1
    src.depth -= 1


def _least_size(src: Source, field: Field) -> int:
    """Return the minimum size of an element: an absurd count is found without reading on."""
    if field.kind in FIXED:
        return FIXED[field.kind][1]
    if field.kind != "struct":
        return 1 if src.flexible else (2 if field.kind == "string" else 4)
    assert field.struct is not None
    total = 1 if src.flexible else 0
    for inner in fields_of(field.struct):
        if not inner.present(src.version) or inner.tagged(src.version):
            continue
        if inner.is_array:
            total += 1 if src.flexible else 4
        elif inner.kind == "struct":
            total += 1
        else:
            total += _least_size(src, inner)
    return max(total, 1)
