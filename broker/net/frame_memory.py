"""Memory for incomplete frames, shared by all connections of a process.

Pure: takes `now`, in seconds. A worker counts the memory of the frames that it receives, a router
the parts of requests that it cannot forward yet.

    within `limit`    a frame grows as its bytes arrive
    above it          a connection that needs more memory waits, and is not read from meanwhile

Waiting cannot end in a deadlock. Beside the limit there are lanes, by how many bytes a frame lacks.
A waiting connection that gets a place in its lane has all the memory that its frame still needs, so
it can finish whatever the others do; an empty lane takes any frame. Places are given in the order
of the start of the wait plus the time that the missing bytes take at PACE: small frames overtake
large ones. Once the first in a lane has waited for PATIENCE_S, the youngest is next: in a crowd of
clients that never finish, the ones that reconnect are those that do.

A connection that holds memory while others wait has to keep pace. If its client sends nothing for
PATIENCE_S, or is slower than PACE for that long, it gives way: it is closed. So does a connection
that has waited for WAIT_S: its client has given up. While no connection waits, clients may take all
the time they like. Above `most`, connections give way at once, which bounds the memory however many
connections begin a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

PATIENCE_S = 5.0
LANE_PATIENCE_S = 2.0  # with a client that sends nothing although it has memory
PACE = 8 << 20  # bytes per second
WAIT_S = 15.0  # half of Kafka's request.timeout.ms
CHECK_S = 0.25  # how often `check` is called while connections wait
# The bytes that frames of a lane lack at most, and its share of the limit. The last lane takes
# all other frames.
LANES = ((256 << 10, 8), (4 << 20, 4), (1 << 62, 4))
LEAST_LANE = 1 << 20


class Holder(Protocol):
    """A connection."""

    @property
    def is_receiving(self) -> bool:
        """False while it is not read from for a reason that is not the client's fault."""

    def room_found(self) -> None:
        """The memory that it waits for is granted."""

    def give_way(self) -> None:
        """Close, and free the memory: others need it."""


class Claim:
    """The memory that one connection holds."""

    __slots__ = ("active", "asked", "expected_s", "have", "holder", "lane", "memory", "reserved",
                 "since", "size", "waits_in", "waits_since")  # fmt: skip

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.memory = 0
        self.size = 0  # of the whole frame; 0: no frame is incomplete
        self.have = 0
        self.active = 0.0  # when the last bytes arrived
        self.since = 0.0  # since when its pace is measured
        self.expected_s = 0.0  # how long the rest takes at PACE
        self.asked = 0
        self.waits_in: Lane | None = None
        self.waits_since = 0.0
        self.lane: Lane | None = None  # in which it has a place
        self.reserved = 0

    def measure_from(self, now: float) -> None:
        self.active = self.since = now
        self.expected_s = (self.size - self.have) / PACE

    def late_s(self, now: float) -> float:
        """The seconds by which its client has exceeded the patience; 0 or less: it has not."""
        if self.waits_in is not None or not self.size or not self.holder.is_receiving:
            return 0
        patience_s = PATIENCE_S if self.lane is None else LANE_PATIENCE_S
        still = now - self.active - patience_s
        slow = now - self.since - self.expected_s - PATIENCE_S
        return max(still, slow)


class Lane:
    """Memory beside the limit, for finishing frames."""

    def __init__(self, lacking: int, room: int) -> None:
        self.lacking = lacking  # of a frame, at most
        self.room = room
        self.used = 0
        self._order = count()
        self._by_due: list[tuple[float, int, Claim]] = []
        self._waiting: dict[Claim, None] = {}  # in the order of arrival

    def add(self, claim: Claim, now: float) -> None:
        claim.waits_in, claim.waits_since = self, now
        self._waiting[claim] = None
        due = now + (claim.size - claim.memory) / PACE
        heappush(self._by_due, (due, next(self._order), claim))

    def remove(self, claim: Claim) -> None:
        claim.waits_in = None
        del self._waiting[claim]
        if not self._waiting:
            self._by_due.clear()

    def oldest(self) -> Claim | None:
        return next(iter(self._waiting), None)

    def first(self, now: float) -> Claim | None:
        """The next one."""
        oldest = self.oldest()
        if oldest is None:
            return None
        if now - oldest.waits_since > PATIENCE_S:
            return next(reversed(self._waiting))
        by_due = self._by_due
        while by_due[0][2].waits_in is not self:
            heappop(by_due)  # it has left
        return by_due[0][2]

    def takes(self, size: int) -> bool:
        return not self.used or self.used + size <= self.room


class FrameMemory:
    def __init__(
        self,
        limit: int,
        room: Callable[[], int] | None = None,
        on_held: Callable[[int], None] | None = None,
    ) -> None:
        """`room`: the part of `limit` that other uses leave. `on_held` is called with the bytes
        held whenever they change."""
        self.limit = limit
        self.held = 0
        # Called when the first connection begins to wait.
        self.on_waiting: Callable[[], None] | None = None
        self._room = room or (lambda: limit)
        self._on_held = on_held
        self._claims: dict[Holder, Claim] = {}
        self.waiting = 0  # how many connections
        self._lanes = [Lane(lacking, max(limit // part, LEAST_LANE)) for lacking, part in LANES]
        self._now = 0.0
        self._is_serving = False

    @property
    def is_short(self) -> bool:
        """Whether a new frame gets no more memory than its bytes take."""
        return self.waiting > 0 or self.held >= self._room()

    @property
    def most(self) -> int:
        """The maximum that is never exceeded."""
        return self.limit + sum(max(lane.room, lane.used) for lane in self._lanes)

    # --- connections ---

    def hold(
        self,
        holder: Holder,
        memory: int,
        size: int,
        have: int,
        now: float,
        *,
        is_new: bool = False,
    ) -> None:
        """The connection holds this much memory, and has `have` of the `size` bytes of a frame.
        `is_new`: the frame has just begun. The connection may have to give way within this call."""
        self._now = now
        claim = self._claims.get(holder)
        if claim is None:
            claim = self._claims[holder] = Claim(holder)
            is_new = True
        elif is_new:
            self._leave_lane(claim)
        claim.size, claim.have = size, have
        if is_new:
            claim.measure_from(now)
        else:
            claim.active = now
        self._resize(claim, memory)
        self._shrink()

    def ask(self, holder: Holder, memory: int, now: float) -> bool:
        """Ask for this much memory in total. Returns whether it is granted; otherwise the
        connection waits for `room_found`, or had to give way within this call."""
        claim = self._claims[holder]
        if not (self.waiting or self.held + memory - claim.memory > self._room()):
            self._resize(claim, memory)
            return True
        self._now = now
        if claim.lane is not None:
            self._resize(claim, memory)
            self._shrink()
            return holder in self._claims
        claim.asked = memory
        self.waiting += 1
        lacking = claim.size - claim.memory
        next(lane for lane in self._lanes if lacking <= lane.lacking).add(claim, now)
        self._serve(asking=claim)
        self._shrink()
        if claim.waits_in is None:
            return holder in self._claims
        if self.on_waiting is not None:
            self.on_waiting()
        return False

    def resumed(self, holder: Holder, now: float) -> None:
        """The connection is read from again."""
        claim = self._claims.get(holder)
        if claim is not None:
            claim.measure_from(now)

    def release(self, holder: Holder) -> None:
        """The connection holds no more memory."""
        claim = self._claims.pop(holder, None)
        if claim is not None:
            self._drop(claim)
            self._serve()
            self._shrink()

    def ease(self) -> None:
        """There may be more room."""
        self._serve()
        self._shrink()

    # --- giving way ---

    def check(self, now: float) -> None:
        """Close connections that do not keep pace while others wait."""
        self._now = now
        if not self.waiting:
            return
        late = [(claim.late_s(now), claim) for claim in self._claims.values()]
        late = [each for each in late if each[0] > 0]
        late.sort(key=lambda each: (each[0], each[1].memory), reverse=True)
        waiting = [each for each in self._claims.values() if each.waits_in is not None]
        wanted = sum(each.asked - each.memory for each in waiting)
        goal = self._room() - min(wanted, self.limit // 4)
        for _, claim in late:
            if claim.lane is not None or self.held > goal:
                self._evict(claim)
        for lane in self._lanes:
            while (oldest := lane.oldest()) is not None and now - oldest.waits_since > WAIT_S:
                self._evict(oldest)
        self._serve()
        self._shrink()

    def forgive(self, seconds: float) -> None:
        """The process was stopped or busy for this long, which is no client's fault."""
        for claim in self._claims.values():
            claim.active += seconds
            claim.since += seconds
            claim.waits_since += seconds

    def _shrink(self) -> None:
        """Close connections while they hold more than `most`: small frames that have just begun
        may have taken the room that frames in the lanes were promised, and a frame that leaves its
        lane lowers the bound."""
        while self.held > self.most:
            now = self._now

            def rank(claim: Claim, now: float = now) -> tuple[bool, float, int, float]:
                """The order in which connections give way: those that keep pace last, small and
                young ones at the very end."""
                late_s = max(claim.late_s(now), 0)
                return claim.lane is None, late_s, claim.memory.bit_length(), now - claim.since

            for claim in sorted(self._claims.values(), key=rank, reverse=True):
                # Somewhat more than necessary, since choosing takes time.
                if self.held <= self.most - self.most // 8:
                    break
                self._evict(claim)
            self._serve()

    def _evict(self, claim: Claim) -> None:
        if self._claims.pop(claim.holder, None) is not None:
            self._drop(claim)
            claim.holder.give_way()

    # --- counting ---

    def _resize(self, claim: Claim, memory: int) -> None:
        if memory != claim.memory:
            self.held += memory - claim.memory
            claim.memory = memory
            if self._on_held is not None:
                self._on_held(self.held)

    def _drop(self, claim: Claim) -> None:
        self._leave_lane(claim)
        self._end_wait(claim)
        self._resize(claim, 0)

    def _end_wait(self, claim: Claim) -> None:
        if claim.waits_in is not None:
            claim.waits_in.remove(claim)
            self.waiting -= 1

    def _leave_lane(self, claim: Claim) -> None:
        if claim.lane is not None:
            claim.lane.used -= claim.reserved
            claim.lane, claim.reserved = None, 0

    def _serve(self, asking: Claim | None = None) -> None:
        """Give memory to waiting connections. `asking` is not called back."""
        if not self.waiting or self._is_serving:
            return
        self._is_serving = True
        try:
            for lane in self._lanes:
                while (claim := lane.first(self._now)) is not None and self._let_in(claim, lane):
                    if claim is not asking:
                        claim.holder.room_found()
        finally:
            self._is_serving = False

    def _let_in(self, claim: Claim, lane: Lane) -> bool:
        if self.held + claim.asked - claim.memory > self._room():
            lacking = claim.size - claim.memory
            if not lane.takes(lacking):
                return False
            claim.lane, claim.reserved = lane, lacking
            lane.used += lacking
        self._end_wait(claim)
        self._resize(claim, claim.asked)
        claim.measure_from(self._now)
        return True
