"""Who has acquired which records until when. Locks are memory only: they die with their worker.

A lock belongs to one acquisition of one member. It stays until none of its records is acquired or
in transit, for if a write fails its records go back to it. One that **ended** (its time is over, or
its member has left) stays for the same reason, and then they do not.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

MAX_NUMBER = (1 << 32) - 1
# Most locks are gone long before their deadline. When the heap is mostly those it is rebuilt.
_SLACK = 64


class Lock:
    __slots__ = ("after", "deadline_ms", "first", "has_ended", "left", "member", "number")

    def __init__(self, number: int, member: str, deadline_ms: int, first: int) -> None:
        self.number = number
        self.member = member
        self.deadline_ms = deadline_ms
        self.first = first
        """The position of its first record."""
        self.after = first
        """The position behind its last one."""
        self.left = 0
        """How many records are acquired under it, or in transit."""
        self.has_ended = False


class Locks:
    def __init__(self) -> None:
        self._by_number: dict[int, Lock] = {}
        self._by_member: dict[str, set[int]] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._last = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def get(self, number: int) -> Lock | None:
        return self._by_number.get(number)

    def is_of(self, number: int, member: str) -> bool:
        lock = self._by_number.get(number)
        return lock is not None and lock.member == member

    def add(self, member: str, deadline_ms: int, first: int) -> Lock:
        number = self._last % MAX_NUMBER + 1
        while number in self._by_number:
            number = number % MAX_NUMBER + 1
        self._last = number
        lock = self._by_number[number] = Lock(number, member, deadline_ms, first)
        self._by_member.setdefault(member, set()).add(number)
        if len(self._deadlines) > 2 * len(self._by_number) + _SLACK:
            self._rebuild()
        else:
            heappush(self._deadlines, (deadline_ms, number))
        return lock

    def let_go(self, number: int, count: int) -> None:
        """Note that `count` records of a lock are no longer under it."""
        lock = self._by_number.get(number)
        if lock is None:
            return
        lock.left -= count
        if lock.left <= 0:
            del self._by_number[number]
            numbers = self._by_member[lock.member]
            numbers.discard(number)
            if not numbers:
                del self._by_member[lock.member]

    def of_member(self, member: str) -> list[Lock]:
        """Return the locks of a member that have not ended."""
        numbers = self._by_member.get(member, ())
        return [lock for each in sorted(numbers) if not (lock := self._by_number[each]).has_ended]

    def next_deadline(self) -> int | None:
        """Return when the next lock ends."""
        waiting = self._deadlines
        while waiting:
            deadline_ms, number = waiting[0]
            lock = self._by_number.get(number)
            # A number may have been used again.
            if lock is not None and not lock.has_ended and lock.deadline_ms == deadline_ms:
                return deadline_ms
            heappop(waiting)
        return None

    def overdue(self, now_ms: int) -> list[Lock]:
        """Take the locks whose time is over."""
        found: list[Lock] = []
        while (deadline_ms := self.next_deadline()) is not None and deadline_ms <= now_ms:
            _, number = heappop(self._deadlines)
            found.append(self._by_number[number])
        return found

    def postpone(self, by_ms: int) -> None:
        """Move all deadlines: the worker itself was held up."""
        for lock in self._by_number.values():
            lock.deadline_ms += by_ms
        self._rebuild()

    def _rebuild(self) -> None:
        self._deadlines = [
            (lock.deadline_ms, lock.number)
            for lock in self._by_number.values()
            if not lock.has_ended
        ]
        heapify(self._deadlines)
