"""Aborted transactions of a log, stored as a sorted set by the offsets of their markers."""

from __future__ import annotations

from typing import NamedTuple


class AbortedTransaction(NamedTuple):
    """A transaction that ends after this one begins at `stable` or above."""

    marker: int  # offset of its marker
    first: int
    producer_id: int
    stable: int  # the last stable offset behind the marker


def encode_aborted(aborted: AbortedTransaction) -> tuple[int, str]:
    """Score and member of the sorted set."""
    return aborted.marker, f"{aborted.first}:{aborted.producer_id}:{aborted.stable}"


def decode_aborted(reply: list[bytes]) -> list[AbortedTransaction]:
    """Decode a reply to ZRANGEBYSCORE … WITHSCORES."""
    return [
        AbortedTransaction(int(float(score)), *map(int, member.split(b":")))
        for member, score in zip(reply[::2], reply[1::2], strict=True)
    ]
