"""Writes the source of a message's decoder and encoder for one version, and compiles it.

The generated functions are flat: nested structures become nested loops in one function, runs of
fixed-size fields one `struct` call. Every length and count is checked against what is left of the
frame before anything is allocated, and the elements of all arrays together against a limit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from broker.wire import primitives
from broker.wire.primitives import MalformedMessage
from broker.wire.schema import Codec, Field, Message, fields_of

# kind -> struct letter, size
FIXED = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}


class _Source:
    """Lines of a function under construction, and the names it needs bound."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.depth = 1
        self._count = 0

    def __call__(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def bind(self, stem: str, value: Any) -> str:
        for name, known in self.names.items():
            if known is value:
                return name
        name = f"{stem}{len(self.names)}"
        self.names[name] = value
        return name

    def packer(self, letters: str, method: str) -> str:
        name = f"{method}_{letters.replace('?', 'z')}"
        self.names[name] = getattr(struct.Struct(">" + letters), method)
        return name


@cache
def codec(message: type[Message], version: int, flexible: bool) -> Codec:
    """The compiled codec of a message in one version; compiled when first asked for."""
    decode_source = _decoder(message, version, flexible)
    encode_source = _encoder(message, version, flexible)
    return Codec(
        _compile("decode", message, version, decode_source, "def decode(buf, pos):"),
        _compile("encode", message, version, encode_source, "def encode(m, out):"),
    )


def _compile(what: str, message: type[Message], version: int, source: _Source, head: str) -> Any:
    text = head + "\n" + "\n".join(source.lines) + "\n"
    names = dict(source.names)
    exec(compile(text, f"<{what} {message.__name__} v{version}>", "exec"), names)
    return names[what]


# --- decoding -----------------------------------------------------------------------------------


def _decoder(message: type[Message], version: int, flexible: bool) -> _Source:
    src = _Source(version, flexible)
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
    """Whether a message of this version has such a field anywhere in it."""
    return any(
        wanted(field) or (field.struct is not None and _has(field.struct, version, wanted))
        for field in fields_of(message)
        if field.present(version)
    )


def _decode_struct(src: _Source, message: type[Message], target: str) -> None:
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
    arguments = [values.get(field.name) or _default(src, field) for field in fields]
    src(f"{target} = {src.bind('T', message)}({', '.join(arguments)})")


def _default(src: _Source, field: Field) -> str:
    value = field.default
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    if value == []:
        return "[]"
    assert isinstance(value, Message), f"{field.name}: no way to write the default {value!r}"
    return f"{src.bind('T', type(value))}()"  # a new one each time: messages are mutable


def _decode_tags(src: _Source, fields: list[Field], values: dict[str, str]) -> None:
    tagged = [field for field in fields if field.tagged(src.version)]
    for field in tagged:
        values[field.name] = name = src.fresh(field.name)
        src(f"{name} = {_default(src, field)}")
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


def _decode_field(src: _Source, field: Field, name: str) -> None:
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


def _decode_length(src: _Source, size: str, letter: str) -> None:
    """The length or count before a string, bytes or array; -1 stands for null."""
    if src.flexible:
        src(f"{size} = buf[pos] - 1")
        src("pos += 1")
        src(f"if {size} > 126:")
        src(f"    {size}, pos = read_uvarint(buf, pos - 1)")
        src(f"    {size} -= 1")
    else:
        src(f"{size}, = {src.packer(letter, 'unpack_from')}(buf, pos)")
        src(f"pos += {2 if letter == 'h' else 4}")


def _reject_null(src: _Source, size: str, what: str, nullable: bool) -> None:
    bound = -1 if nullable else 0
    src(f"if {size} < {bound}: raise Malformed('{what}: length ' + str({size}))")


def _decode_blob(src: _Source, kind: str, what: str, name: str, nullable: bool) -> None:
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
    elif kind == "bytes":
        src(f"{name} = bytes(buf[pos:{after}])")
    else:
        src(f"{name} = view[pos:{after}]")
    src(f"pos = {after}")
    src.depth -= 1


def _decode_array(src: _Source, field: Field, name: str, nullable: bool) -> None:
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


def _least_size(src: _Source, field: Field) -> int:
    """The fewest bytes an element can take: an absurd count is found without reading on."""
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


# --- encoding -----------------------------------------------------------------------------------


def _encoder(message: type[Message], version: int, flexible: bool) -> _Source:
    src = _Source(version, flexible)
    src.names.update(
        UV=primitives.UVARINTS,
        uvarint=primitives.uvarint,
        pack_tags=primitives.pack_tags,
        pack_ints=primitives.pack_ints,
    )
    src("w = out.append")
    _encode_struct(src, message, "m")
    return src


class _Run:
    """Fixed-size values waiting to go out in one `pack`."""

    def __init__(self, src: _Source) -> None:
        self.src = src
        self.letters = ""
        self.values: list[str] = []

    def add(self, letter: str, value: str) -> None:
        self.letters += letter
        self.values.append(value)

    def flush(self) -> None:
        if self.values == ["0"] and self.letters == "B":  # no tagged fields: nothing to compute
            self.src("w(b'\\0')")
        elif self.letters:
            self.src(f"w({self.src.packer(self.letters, 'pack')}({', '.join(self.values)}))")
        self.letters, self.values = "", []


def _encode_struct(src: _Source, message: type[Message], var: str) -> None:
    run = _Run(src)
    fields = [field for field in fields_of(message) if field.present(src.version)]
    for field in fields:
        if not field.tagged(src.version):
            _encode_field(src, run, field, f"{var}.{field.name}")
    if src.flexible:
        tagged = sorted(
            (field for field in fields if field.tagged(src.version)), key=lambda f: f.rule.tag
        )
        if tagged:
            run.flush()
            _encode_tags(src, tagged, var)
        else:
            run.add("B", "0")
    run.flush()


def _encode_tags(src: _Source, fields: list[Field], var: str) -> None:
    tags, whole = src.fresh("tags"), src.fresh("w")
    src(f"{tags} = []")
    src(f"{whole} = w")
    for field in fields:
        value = src.fresh(field.name)
        src(f"{value} = {var}.{field.name}")
        unlike = "is not" if field.default is None else "!="
        src(f"if {value} {unlike} {_default(src, field)}:")
        src.depth += 1
        parts = src.fresh("parts")
        src(f"{parts} = []")
        src(f"w = {parts}.append")
        inner = _Run(src)
        _encode_field(src, inner, field, value)
        inner.flush()
        src(f"{tags}.append(({field.rule.tag}, {parts}))")
        src.depth -= 1
    src(f"w = {whole}")
    src(f"w(pack_tags({tags}) if {tags} else b'\\0')")


def _encode_field(src: _Source, run: _Run, field: Field, value: str) -> None:
    if field.is_array:
        _encode_array(src, run, field, value)
    elif field.kind in FIXED:
        run.add(FIXED[field.kind][0], value)
    elif field.kind == "struct":
        assert field.struct is not None
        run.flush()
        var = src.fresh(field.name)
        src(f"{var} = {value}")
        if field.nullable(src.version) and not field.tagged(src.version):
            src(f"if {var} is None: w(b'\\xff')")
            src("else:")
            src.depth += 1
            src("w(b'\\x01')")
            _encode_struct(src, field.struct, var)
            src.depth -= 1
        else:
            _encode_struct(src, field.struct, var)
    else:
        _encode_blob(src, run, field, value)


def _encode_length(src: _Source, run: _Run, size: str, letter: str) -> None:
    if src.flexible:
        run.flush()
        src(f"w(UV[{size} + 1] if {size} < {primitives.TABLE_SIZE - 1} else uvarint({size} + 1))")
    else:
        run.add(letter, size)


def _encode_blob(src: _Source, run: _Run, field: Field, value: str) -> None:
    letter = "h" if field.kind == "string" else "i"
    var, size = src.fresh(field.name), src.fresh("n")
    src(f"{var} = {value}")
    if field.kind == "records":
        src(f"if {var} is None: {var} = (); {size} = {-1 if field.nullable(src.version) else 0}")
        src(f"elif type({var}) is list: {size} = sum(map(len, {var}))")
        src(f"else: {size} = len({var}); {var} = ({var},)")
        _encode_length(src, run, size, letter)
        run.flush()
        # `out` is only right outside tagged fields; no message tags its records.
        src(f"out.extend({var})")
        return
    convert = ".encode()" if field.kind == "string" else ""
    if field.optional:
        absent = -1 if field.nullable(src.version) else 0
        src(f"if {var} is None: {var} = b''; {size} = {absent}")
        src(f"else: {var} = {var}{convert}; {size} = len({var})")
    else:
        if convert:
            src(f"{var} = {var}{convert}")
        src(f"{size} = len({var})")
    _encode_length(src, run, size, letter)
    run.flush()
    src(f"w({var})")


def _encode_array(src: _Source, run: _Run, field: Field, value: str) -> None:
    var, size = src.fresh(field.name), src.fresh("n")
    src(f"{var} = {value}")
    if field.optional:
        absent = -1 if field.nullable(src.version) else 0
        src(f"if {var} is None: {var} = (); {size} = {absent}")
        src(f"else: {size} = len({var})")
    else:
        src(f"{size} = len({var})")
    if field.kind in ("int16", "int32", "int64"):
        _encode_ints(src, run, field.kind, var, size)
        return
    _encode_length(src, run, size, "i")
    run.flush()
    item = src.fresh("item")
    src(f"for {item} in {var}:")
    src.depth += 1
    inner = _Run(src)
    if field.kind == "struct":
        assert field.struct is not None
        _encode_struct(src, field.struct, item)
    else:
        _encode_field(src, inner, field._replace(is_array=False, optional=False), item)
        inner.flush()
    src.depth -= 1


def _encode_ints(src: _Source, run: _Run, kind: str, var: str, size: str) -> None:
    """Replicas, in-sync replicas and the like mostly have one element: its own short way."""
    letter = FIXED[kind][0]
    run.flush()
    src(
        f"if {size} == 1: w({src.packer(('B' if src.flexible else 'i') + letter, 'pack')}"
        f"({2 if src.flexible else 1}, {var}[0]))"
    )
    src("else:")
    src.depth += 1
    _encode_length(src, run, size, "i")
    run.flush()
    src(f"if {size} > 1: w(pack_ints({letter!r}, {var}))")
    src.depth -= 1
