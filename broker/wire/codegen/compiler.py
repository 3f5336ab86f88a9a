"""Compiles a message's decoder and encoder for one version, once.

The generated functions are flat: nested structures become nested loops in one function, runs of
fixed-size fields one `struct` call.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from moldau.broker.wire.codegen.decoder import decoder
from moldau.broker.wire.codegen.encoder import encoder
from moldau.broker.wire.codegen.source import Source
from moldau.broker.wire.schema import Codec, Message


@cache
def codec(message: type[Message], version: int, flexible: bool) -> Codec:
    """Return the codec of a message in one version. It is compiled when first asked for."""
    decode_source = decoder(message, version, flexible)
    encode_source = encoder(message, version, flexible)
    return Codec(
        _compile("decode", message, version, decode_source, "def decode(buf, pos):"),
        _compile("encode", message, version, encode_source, "def encode(m, out):"),
    )


def _compile(what: str, message: type[Message], version: int, source: Source, head: str) -> Any:
    text = head + "\n" + "\n".join(source.lines) + "\n"
    names = dict(source.names)
    exec(compile(text, f"<{what} {message.__name__} v{version}>", "exec"), names)
    return names[what]
