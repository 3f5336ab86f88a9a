"""Commands as bytes ready for the wire: templates for the hot path, packed words for the rest."""

from __future__ import annotations

from typing import Any

import hiredis

from moldau.broker.wire.batch import Buffer


def command(*words: bytes | str | int | float) -> bytes:
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # any number of words
    return packed


def pairs(reply: list[Any]) -> dict[Any, Any]:
    """A flat reply of names and values (HGETALL, XINFO) as a dict."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def append_prefix(key: bytes) -> bytes:
    """`XADD key NOMKSTREAM` without the id and the fields: built once per partition."""
    return b"$4\r\nXADD\r\n" + bulk(key) + b"$10\r\nNOMKSTREAM\r\n"


def append(
    prefix: bytes, offset: int, parts: list[Buffer], size: int, nonce: bytes
) -> list[Buffer]:
    """`XADD key NOMKSTREAM <offset>-1 b <parts concatenated> [w <nonce>]`."""
    entry_id = b"%d-1" % offset
    if nonce:
        head = b"*8\r\n%b$%d\r\n%b\r\n$1\r\nb\r\n$%d\r\n" % (prefix, len(entry_id), entry_id, size)
        return [head, *parts, b"\r\n$1\r\nw\r\n$%d\r\n%b\r\n" % (len(nonce), nonce)]
    head = b"*6\r\n%b$%d\r\n%b\r\n$1\r\nb\r\n$%d\r\n" % (prefix, len(entry_id), entry_id, size)
    return [head, *parts, b"\r\n"]


def read_back(key: bytes, offset: int) -> bytes:
    """`XREVRANGE key <offset>-1 - COUNT 1`: the entry that contains the offset, if any."""
    return b"*6\r\n$9\r\nXREVRANGE\r\n%b%b$1\r\n-\r\n$5\r\nCOUNT\r\n$1\r\n1\r\n" % (
        bulk(key),
        bulk(b"%d-1" % offset),
    )


def read_on(key: bytes, offset: int, count: int) -> bytes:
    """`XRANGE key <offset>-1 + COUNT n`: the entries that begin at the offset or after it."""
    return b"*6\r\n$6\r\nXRANGE\r\n%b%b$1\r\n+\r\n$5\r\nCOUNT\r\n%b" % (
        bulk(key),
        bulk(b"%d-1" % offset),
        bulk(b"%d" % count),
    )


def wake(key: bytes, partition_key: bytes) -> bytes:
    """`XADD moldau:wake:<leader> MAXLEN ~ 1000 * k <partition's key>`."""
    return (
        b"*8\r\n$4\r\nXADD\r\n%b$6\r\nMAXLEN\r\n$1\r\n~\r\n$4\r\n1000\r\n$1\r\n*\r\n$1\r\nk\r\n%b"
        % (bulk(key), bulk(partition_key))
    )
