"""The ids of stream entries, `<milliseconds>-<sequence>`. Pure."""

from __future__ import annotations

from typing import NamedTuple

MAX_SEQUENCE = (1 << 64) - 1


class Id(NamedTuple):
    ms: int
    seq: int

    def __bytes__(self) -> bytes:
        return b"%d-%d" % self

    @property
    def before(self) -> Id:
        """The id right below."""
        if self.seq:
            return Id(self.ms, self.seq - 1)
        return Id(self.ms - 1, MAX_SEQUENCE) if self.ms else self

    @property
    def after(self) -> Id:
        return Id(self.ms, self.seq + 1) if self.seq < MAX_SEQUENCE else Id(self.ms + 1, 0)


def parse(raw: bytes) -> Id:
    ms, _, seq = raw.partition(b"-")
    return Id(int(ms), int(seq))


LARGEST_OFFSET = 1 << 62  # half of what a client can read: ids may still grow


def too_large(entry_id: Id, bits: int) -> bool:
    """Ids are milliseconds, or arbitrary numbers: is this one beyond every offset?"""
    return entry_id.ms >= LARGEST_OFFSET >> bits
