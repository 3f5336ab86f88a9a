"""A share-partition with a store that always takes what it is given."""

from __future__ import annotations

from bisect import bisect_left

from moldau.broker.errors import ErrorCode
from moldau.broker.share import states
from moldau.broker.share.effects import Archived, Decided, Effect, Expired
from moldau.broker.share.limits import AcquireMode, ShareLimits, Wish
from moldau.broker.share.partition import SharePartition
from moldau.broker.share.spans import Read, Span

ACCEPT, RELEASE, REJECT, GAP, RENEW = (
    bytes((each,))
    for each in (states.ACCEPT, states.RELEASE, states.REJECT, states.GAP, states.RENEW)
)
Range = tuple[int, int, int]
AT_ONCE = 200  # batches of one read: a log of thousands is not passed on whole each time


class Driver:
    """`batches` are the log: first and last offset, and whether it is delivered."""

    def __init__(
        self, *batches: tuple[int, int], start: int = 0, limits: ShareLimits | None = None
    ) -> None:
        self.limits = limits or ShareLimits()
        self.batches = [(first, last, True) for first, last in batches]
        self.now = 0
        self.partition = SharePartition()
        self.partition.resolve(start)
        self.stored = b""
        self.effects: list[Effect] = []
        self.save()

    def save(self) -> None:
        if self.partition.save_at() is not None:
            self.stored = self.partition.begin_save()
            self.partition.saved()
            self.effects += self.partition.take_effects()

    def read(self) -> Read | None:
        first = self.partition.wanted(self.limits)
        if first is None:
            return None
        at = bisect_left(self.batches, first, key=lambda batch: batch[1])
        spans = [Span(a, b, ok, 0, 0, 0) for a, b, ok in self.batches[at : at + AT_ONCE]]
        return Read(first, spans[-1].last + 1 if spans else first, [], spans)

    def acquire(
        self,
        member: str = "a",
        most: int = 500,
        batch_size: int = 500,
        mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
    ) -> list[Range]:
        read = self.read()
        if read is None:
            return []
        wish = Wish(most, batch_size, mode)
        got = self.partition.acquire(read, member, wish, self.limits, self.now)
        return [] if got is None else got.ranges

    def acknowledge(self, *batches: tuple[int, int, bytes], member: str = "a") -> ErrorCode:
        """Return the answer, after the write that it waits for."""
        code = self.partition.acknowledge("call", member, batches, self.limits, self.now)
        if code is not None:
            return code
        self.effects.clear()
        self.save()
        (decided,) = [each for each in self.effects if isinstance(each, Decided)]
        return decided.code

    def wait(self, ms: int) -> None:
        self.now += ms
        self.partition.expire(self.limits, self.now)
        self.effects += self.partition.take_effects()

    def archived(self) -> list[Archived]:
        return [each for each in self.effects if isinstance(each, Archived)]

    def expired(self) -> int:
        return sum(each.records for each in self.effects if isinstance(each, Expired))

    def restart(self) -> None:
        """The leader is killed; another one takes what is stored."""
        self.partition = SharePartition(self.stored)

    def runs(self) -> list[tuple[int, int, str, int]]:
        view = self.partition.view(self.now, 1000)
        return [(run.first, run.last, run.state, run.delivery_count) for run in view.runs]
