"""A share group's life in virtual time: a log, a store, leaders that come and go, and members.

`World` is what the random tests drive. After every step it compares the leader's window with a dict
of records (`Model`) that follows the rules one record at a time, and checks what members
may expect:

P1  a record whose acceptance was confirmed is not handed out again
P2  a record has one holder at most, and only its holder's acknowledgement is confirmed
P4  delivery counts rise by one, and are not below the stored ones with the next leader
P5  what is stored can be read, and calls nothing acknowledged that nobody accepted
P6  the window equals the dict
P7  a write under an older term changes nothing
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from moldau.broker.errors import ErrorCode
from moldau.broker.share import acknowledging, state, states
from moldau.broker.share.effects import Archived, Decided
from moldau.broker.share.limits import AcquireMode, ShareLimits, Wish
from moldau.broker.share.partition import SharePartition
from moldau.broker.share.spans import Read, Span

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = "available", "acquired", "acknowledged", "archived"
ACCEPTING, ARCHIVING, RELEASING = "accepting", "archiving", "releasing"
FINISHED = (ACKNOWLEDGED, ARCHIVED)
TRANSIT = (ACCEPTING, ARCHIVING, RELEASING)


@dataclass
class Log:
    """Batches by their offsets; a batch that is not delivered is a control batch or aborted."""

    batches: list[tuple[int, int, bool]] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def append(self, count: int, *, is_delivered: bool = True) -> None:
        self.batches.append((self.end, self.end + count - 1, is_delivered))
        self.end += count

    def skip(self, count: int) -> None:
        """Begin a new leader epoch above a gap."""
        self.end += count

    def trim(self, offset: int) -> None:
        self.start = max(self.start, min(offset, self.end))
        self.batches = [batch for batch in self.batches if batch[1] >= self.start]

    def compact(self, index: int) -> None:
        if self.batches:
            del self.batches[index % len(self.batches)]

    def holds(self, offset: int) -> bool:
        return offset >= self.start and any(
            first <= offset <= last for first, last, delivered in self.batches if delivered
        )

    def records(self) -> list[int]:
        batches = [batch for batch in self.batches if batch[2]]
        return [o for a, b, _ in batches for o in range(max(a, self.start), b + 1)]

    def read(self, first: int, most: int) -> Read:
        found = [batch for batch in self.batches if batch[1] >= first]
        spans = [Span(a, b, delivered, 0, 0, 0) for a, b, delivered in found[:most]]
        end = spans[-1].last + 1 if len(found) > most else self.end
        return Read(first, max(end, first), [], spans)


@dataclass
class Store:
    term: int = 0
    state: bytes = b""

    def write(self, term: int, what: bytes) -> bool:
        if term != self.term:
            return False
        self.state = what
        return True


@dataclass
class ModelLock:
    member: str
    deadline: int
    has_ended: bool = False


@dataclass
class ModelRecord:
    state: str
    count: int
    lock: ModelLock | None = None


class Model:
    """The records of a window, one by one."""

    def __init__(self, stored: bytes) -> None:
        self.records: dict[int, ModelRecord] = {}
        self.end: int | None = None
        window = state.decode(stored)
        if window is not None:
            self.end = window.end
            for position in range(window.base, window.top):
                value = window.of(position, position + 1)[0]
                name = states.NAMES[value & states.STATE]
                count = value & states.COUNT
                self.records[window.offset(position)] = ModelRecord(name, count)
        self.flying: set[int] = set()
        self.next: set[int] = set()

    def pass_start(self) -> None:
        for offset in sorted(self.records):
            if self.records[offset].state not in FINISHED:
                return
            del self.records[offset]

    def cut(self, offset: int) -> None:
        assert self.end is not None
        self.records = {each: record for each, record in self.records.items() if each >= offset}
        self.end = max(self.end, offset)
        self.pass_start()

    def give_back(self, offset: int, limit: int) -> None:
        record = self.records[offset]
        record.lock = None
        if record.count < limit:
            record.state = AVAILABLE
        else:
            record.state = ARCHIVING
            self.next.add(offset)

    def end_locks(self, ends: Callable[[ModelLock], bool], limit: int) -> None:
        for offset, record in self.records.items():
            if record.lock is not None and (record.lock.has_ended or ends(record.lock)):
                record.lock.has_ended = True
                if record.state == ACQUIRED:
                    self.give_back(offset, limit)

    def landed(self, limit: int, *, is_done: bool) -> None:
        flying, self.flying = self.flying, set()
        for offset in sorted(flying & self.records.keys()):
            record = self.records[offset]
            assert record.state in TRANSIT
            if not is_done:
                record.state = ACQUIRED
                if record.lock is None or record.lock.has_ended:
                    self.give_back(offset, limit)
            elif record.state == RELEASING:
                record.state, record.lock = AVAILABLE, None
            else:
                record.state = ACKNOWLEDGED if record.state == ACCEPTING else ARCHIVED
                record.count, record.lock = 0, None
        if is_done:
            self.pass_start()


class World:
    def __init__(self, limits: ShareLimits) -> None:
        self.limits = limits
        self.log = Log()
        self.store = Store()
        self.now = 0
        self.accepted: set[int] = set()  # confirmed
        self.tried: set[int] = set()  # accepted, confirmed or not
        self.given_up: set[int] = set()  # rejected, gap, at the limit, not in the log
        self.delivered: dict[int, int] = {}
        self.calls: dict[int, tuple[str, list[tuple[int, int]]]] = {}
        self.last_call = 0
        self.codes: list[ErrorCode] = []
        self.archived: list[Archived] = []
        self.late: list[tuple[int, bytes]] = []
        self.take()

    # --- leaders ---

    def take(self) -> None:
        """A new leader: the old one is gone, or asleep with a write on its way."""
        self.term = self.store.term = self.store.term + 1
        stored = self.store.state
        self.partition = SharePartition(stored)
        self.model = Model(stored)
        self.flying: bytes | None = None
        self.calls.clear()
        # P4: the next count is above the stored one, which may be below what was handed out last.
        self.counts = {offset: record.count for offset, record in self.model.records.items()}
        self.compare()

    def die(self, *, is_write_done: bool) -> None:
        if self.flying is not None and is_write_done:
            self.store.write(self.term, self.flying)
        self.take()

    def fall_asleep(self) -> None:
        if self.flying is not None:
            self.late.append((self.term, self.flying))
        self.take()

    def late_bytes_arrive(self) -> None:
        before = self.store.state
        for term, what in self.late:
            assert not self.store.write(term, what)
        assert self.store.state == before
        self.late.clear()

    # --- writes ---

    def begin_save(self) -> None:
        if self.partition.save_at() is None or self.partition.is_saving:
            return
        self.flying = self.partition.begin_save()
        self.model.flying, self.model.next = self.model.next, set()
        self.check_stored(self.flying)

    def end_save(self, outcome: str) -> None:
        """`done`, `failed`, or `unknown`: done and reported as failed."""
        if self.flying is None:
            return
        if outcome != "failed":
            assert self.store.write(self.term, self.flying)
        self.flying = None
        if outcome == "done":
            self.partition.saved()
        else:
            self.partition.save_failed(ErrorCode.KAFKA_STORAGE_ERROR, self.limits, self.now)
        self.model.landed(self.limits.delivery_count, is_done=outcome == "done")
        self.note_given_up()
        self.hear()
        self.compare()

    def check_stored(self, what: bytes) -> None:
        """P5."""
        window = state.decode(what)
        if window is None:
            return
        over = self.tried | self.given_up
        for offset in self.log.records():
            assert offset >= window.start or offset in over, offset
        for position in range(window.base, window.top):
            offset, value = window.offset(position), window.of(position, position + 1)[0]
            if value == states.ACKNOWLEDGED:
                assert offset in self.tried
            elif value == states.ARCHIVED:
                assert offset in self.given_up or not self.log.holds(offset)

    # --- members ---

    def fetch(self, member: str, most: int, mode: AcquireMode, batches: int = 3) -> int:
        partition, model = self.partition, self.model
        if not partition.is_resolved:
            partition.resolve(self.log.start)
            model.end = self.log.start
            return 0
        self.follow_log()
        first = partition.wanted(self.limits)
        if first is None:
            return 0
        read = self.log.read(first, batches)
        room = self.limits.max_records - len(partition)
        got = partition.acquire(read, member, Wish(most, 4, mode), self.limits, self.now)
        ranges = [] if got is None else got.ranges
        assert got is None or got.records == sum(b - a + 1 for a, b, _ in ranges)
        if mode is AcquireMode.RECORD_LIMIT:
            assert sum(last - first + 1 for first, last, _ in ranges) <= most
        self.follow_acquisition(member, read, ranges, room)
        self.hear()
        self.compare()
        return sum(last - first + 1 for first, last, _ in ranges)

    def follow_log(self) -> None:
        if self.model.end is not None and self.log.start > self.partition.start:
            self.partition.log_start_moved(self.log.start, self.now)
            self.model.cut(self.log.start)
            self.compare()

    def follow_acquisition(
        self, member: str, read: Read, ranges: list[tuple[int, int, int]], room: int
    ) -> None:
        model = self.model
        assert model.end is not None
        delivered = {o for s in read.spans if s.is_delivered for o in range(s.first, s.last + 1)}
        passed = {o for s in read.spans if not s.is_delivered for o in range(s.first, s.last + 1)}
        for offset, record in model.records.items():
            inside = read.first <= offset < read.end
            if inside and offset not in delivered and record.state == AVAILABLE:
                record.state, record.count = ARCHIVED, 0
                self.given_up.add(offset)
        lock = ModelLock(member, self.now + self.limits.lock_ms)
        taken: list[int] = []
        new_end = max(model.end, self.partition.end)
        last = -1
        for first, after, count in ranges:
            assert last < first <= after
            last = after
            for offset in range(first, after + 1):
                taken.append(offset)
                assert offset in delivered
                assert offset not in self.accepted, "P1"
                assert count == self.counts.get(offset, 0) + 1, "P4"
                self.counts[offset] = count
                self.delivered[offset] = self.delivered.get(offset, 0) + 1
                known = model.records.get(offset)
                if offset < model.end:
                    assert known is not None
                    assert known.state == AVAILABLE, "P2"
                    assert known.count + 1 == count <= self.limits.delivery_count
                else:
                    assert known is None
                    assert count == 1
                model.records[offset] = ModelRecord(ACQUIRED, count, lock)
        for offset in range(model.end, new_end):
            assert offset in taken or offset not in delivered
            if offset in passed:
                model.records[offset] = ModelRecord(ARCHIVED, 0)
                self.given_up.add(offset)
        assert new_end == model.end or room > 0
        model.end = new_end
        for run in self.partition.view(self.now, 1 << 20).runs:
            for offset in range(run.first, run.last + 1):
                known = model.records.get(offset)
                if run.state == ARCHIVING and known is not None and known.state == AVAILABLE:
                    # Found at the limit, which was lowered.
                    assert known.count >= self.limits.delivery_count
                    known.state = ARCHIVING
                    model.next.add(offset)
        self.given_up |= {o for o, record in model.records.items() if record.state == ARCHIVING}
        model.records = dict(sorted(model.records.items()))
        model.pass_start()

    def acknowledge(self, member: str, batches: list[tuple[int, int, bytes]]) -> None:
        """Acknowledge as a handler does: invalid batches do not reach the partition."""
        if acknowledging.refusal(batches, may_renew=True) is not None:
            self.codes.append(ErrorCode.INVALID_REQUEST)
            return
        self.last_call += 1
        call = self.last_call
        records = [
            (offset, types[0] if len(types) == 1 else types[offset - first])
            for first, last, types in batches
            for offset in range(first, last + 1)
        ]
        outcome = self.outcome_of(member, records)
        if outcome != "refused":
            self.follow_acknowledgement(member, records)
        if outcome == "waits":
            self.calls[call] = (member, records)
        code = self.partition.acknowledge(call, member, batches, self.limits, self.now)
        if outcome == "waits":
            assert code is None
        elif outcome == "nothing":
            assert code is ErrorCode.NONE
        elif code is ErrorCode.INVALID_REQUEST:
            assert self.model.end is None or any(each >= self.model.end for each, _ in records)
        else:
            assert code is ErrorCode.INVALID_RECORD_STATE
        if code is not None:
            self.codes.append(code)
        self.hear()
        self.compare()

    def outcome_of(self, member: str, records: list[tuple[int, int]]) -> str:
        model, outcome = self.model, "nothing"
        start = self.partition.start
        seen: set[int] = set()
        for offset, kind in records:
            if model.end is None or offset >= model.end or offset in seen:
                return "refused"
            seen.add(offset)
            if kind == states.RENEW and not self.limits.may_renew:
                return "refused"
            if offset < start:
                continue
            record = model.records.get(offset)
            if record is None or record.state != ACQUIRED:
                return "refused"
            assert record.lock is not None
            if record.lock.member != member:
                return "refused"
            if kind != states.RENEW:
                outcome = "waits"
        return outcome

    def follow_acknowledgement(self, member: str, records: list[tuple[int, int]]) -> None:
        model, start = self.model, self.partition.start
        renewed = ModelLock(member, self.now + self.limits.lock_ms)
        for offset, kind in records:
            if offset < start:
                continue
            record = model.records[offset]
            if kind == states.RENEW:
                record.lock = renewed
                continue
            model.next.add(offset)
            if kind == states.ACCEPT:
                record.state = ACCEPTING
                self.tried.add(offset)
            elif kind == states.RELEASE and record.count < self.limits.delivery_count:
                record.state = RELEASING
            else:
                record.state = ARCHIVING
                self.given_up.add(offset)

    def leave(self, member: str) -> None:
        limit = self.limits.delivery_count
        self.partition.leave(member, self.limits, self.now)
        self.model.end_locks(lambda lock: lock.member == member, limit)
        self.note_given_up()
        self.hear()
        self.compare()

    def wait(self, ms: int) -> None:
        self.now += ms
        self.partition.expire(self.limits, self.now)
        self.model.end_locks(lambda lock: lock.deadline <= self.now, self.limits.delivery_count)
        self.note_given_up()
        self.hear()
        self.compare()

    def note_given_up(self) -> None:
        records = self.model.records
        self.given_up |= {each for each, record in records.items() if record.state == ARCHIVING}

    def hear(self) -> None:
        for effect in self.partition.take_effects():
            if isinstance(effect, Decided):
                assert isinstance(effect.call, int)
                _, records = self.calls.pop(effect.call)
                self.codes.append(effect.code)
                if effect.code is ErrorCode.NONE:
                    self.accepted |= {each for each, kind in records if kind == states.ACCEPT}
            elif isinstance(effect, Archived):
                self.archived.append(effect)

    # --- P6 ---

    def compare(self) -> None:
        partition, model = self.partition, self.model
        assert partition.is_resolved == (model.end is not None)
        if model.end is None:
            return
        view = partition.view(self.now, 1 << 20)
        seen: dict[int, tuple[str, int, str]] = {}
        for run in view.runs:
            for offset in range(run.first, run.last + 1):
                assert offset not in seen
                seen[offset] = (run.state, run.delivery_count, run.member)
        wanted = {}
        for offset, record in model.records.items():
            lock = record.lock
            member = "" if lock is None or lock.has_ended else lock.member
            wanted[offset] = (record.state, record.count, member)
        assert seen == wanted
        assert partition.end == model.end
        assert partition.start == min(wanted, default=model.end)
        assert partition.finished == sum(each[0] in FINISHED for each in wanted.values())
        assert len(partition) == len(wanted)
        held = {"acquired", *TRANSIT}
        assert view.in_flight == sum(each[0] in held for each in wanted.values())
        # Memory: no lock outlives its records.
        alive = {
            id(record.lock)
            for record in model.records.values()
            if record.lock is not None and record.state in held
        }
        assert len(partition._locks) == len(alive)
        deadlines = [
            record.lock.deadline
            for record in model.records.values()
            if record.lock is not None and not record.lock.has_ended
        ]
        assert partition.next_deadline() == min(deadlines, default=None)
        first = partition.wanted(self.limits)
        if any(each[0] == AVAILABLE for each in wanted.values()) and partition._is_start_stored:
            assert first == min(each for each in wanted if wanted[each][0] == AVAILABLE)
