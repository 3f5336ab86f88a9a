"""What a share-partition tells its shell."""

from __future__ import annotations

from typing import NamedTuple

from moldau.broker.errors import ErrorCode


class Decided(NamedTuple):
    """The outcome of an acknowledgement that waited for its write."""

    call: object
    code: ErrorCode


class Archived(NamedTuple):
    """Records that will not be delivered again, and this is stored."""

    first: int
    last: int
    delivery_count: int
    is_limit: bool
    """They were delivered as often as allowed; otherwise they were rejected."""


class Expired(NamedTuple):
    """Locks ended before their records were acknowledged."""

    records: int


Effect = Decided | Archived | Expired
