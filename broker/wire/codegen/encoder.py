"""Writes the source of a message's encoder for one version."""

from __future__ import annotations

from moldau.broker.wire import primitives
from moldau.broker.wire.codegen.source import FIXED, Source, default_value
from moldau.broker.wire.schema import Field, Message, fields_of


def encoder(message: type[Message], version: int, flexible: bool) -> Source:
    src = Source(version, flexible)
    src.names.update(
        UV=primitives.UVARINTS,
        uvarint=primitives.uvarint,
        pack_tags=primitives.pack_tags,
        pack_ints=primitives.pack_ints,
        cut_text=primitives.cut_text,
    )
    src("w = out.append")
    _encode_struct(src, message, "m")
    return src


class _Run:
    """Fixed-size values waiting to go out in one `pack`."""

    def __init__(self, src: Source) -> None:
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


def _encode_struct(src: Source, message: type[Message], var: str) -> None:
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


def _encode_tags(src: Source, fields: list[Field], var: str) -> None:
    tags, whole = src.fresh("tags"), src.fresh("w")
    src(f"{tags} = []")
    src(f"{whole} = w")
    for field in fields:
        value = src.fresh(field.name)
        src(f"{value} = {var}.{field.name}")
        unlike = "is not" if field.default is None else "!="
        src(f"if {value} {unlike} {default_value(src, field)}:")
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


def _encode_field(src: Source, run: _Run, field: Field, value: str) -> None:
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


def _encode_length(src: Source, run: _Run, size: str, letter: str) -> None:
    if src.flexible:
        run.flush()
        src(f"w(UV[{size} + 1] if {size} < {primitives.TABLE_SIZE - 1} else uvarint({size} + 1))")
    else:
        run.add(letter, size)


def _encode_blob(src: Source, run: _Run, field: Field, value: str) -> None:
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
    if field.name.endswith("error_message"):
        # It may quote the client's input. All other strings are known to fit.
        src(f"if {size} > {primitives.MAX_STRING}: {var} = cut_text({var}); {size} = len({var})")
    _encode_length(src, run, size, letter)
    run.flush()
    src(f"w({var})")


def _encode_array(src: Source, run: _Run, field: Field, value: str) -> None:
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


def _encode_ints(src: Source, run: _Run, kind: str, var: str, size: str) -> None:
    """Replicas, in-sync replicas and the like usually have one element, which has its own short
    path."""
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
