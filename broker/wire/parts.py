"""Joins small parts before a write."""

from __future__ import annotations

from moldau.broker.wire.batch import Buffer

JOIN_BELOW = 8192  # smaller parts are joined: copying them is cheaper than an iovec entry


def coalesce(parts: list[Buffer]) -> list[Buffer]:
    """Join runs of small parts, leave large ones as they are."""
    if len(parts) == 1:
        return parts
    out: list[Buffer] = []
    run: list[Buffer] = []
    for part in parts:
        if len(part) < JOIN_BELOW:
            run.append(part)
            continue
        if run:
            out.append(b"".join(run))
            run = []
        out.append(part)
    if run:
        out.append(b"".join(run))
    return out
