"""Clients of the consumer protocol as they are: they take and give back partitions in their own
time, lose answers, repeat requests, die and return.

What a client reads from (`reading`) is what counts: two clients that are both members must never
read from the same partition.
"""

from dataclasses import dataclass, field

from moldau.broker.errors import ErrorCode
from moldau.broker.group.effects import HeartbeatAnswer
from moldau.broker.group.events import ConsumerHeartbeat
from moldau.broker.group.topics import TopicIdPartition
from tests.support.drivers.group_world import Call, GroupWorld

FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
RETRIABLE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


@dataclass
class ModelConsumer:
    g: GroupWorld
    name: str
    instance: str | None
    topics: tuple[str, ...]
    lives: int = 0
    epoch: int = 0
    is_alive: bool = False
    reading: set[TopicIdPartition] = field(default_factory=set)
    wanted: frozenset[TopicIdPartition] = frozenset()
    """By the last answer it read."""
    must_say_all: bool = True
    said: tuple[str, ...] = ()
    """The topics of its last request that named any."""
    call: Call[HeartbeatAnswer] | None = None
    """The answer it waits for."""
    sent: list[ConsumerHeartbeat] = field(default_factory=list)
    codes: set[ErrorCode] = field(default_factory=set)

    @property
    def member_id(self) -> str:
        return f"{self.name}.{self.lives}"

    # --- its life ---

    def start(self) -> None:
        if not self.is_alive:
            self.lives += 1
            self.is_alive, self.epoch, self.must_say_all = True, 0, True
            self.reading, self.wanted, self.call = set(), frozenset(), None
            self.sent.clear()

    def crash(self) -> None:
        self.is_alive, self.call = False, None
        self.reading, self.epoch = set(), 0

    def leave(self, epoch: int) -> None:
        """It gives everything up first, as clients do."""
        if self.is_alive and self.epoch > 0:
            self.reading = set()
            self._send(epoch, None, full=False)
        self.crash()

    # --- heartbeats ---

    def beat(self, *, says_owned: bool = True) -> None:
        if not self.is_alive or self.call is not None:
            return
        full = self.must_say_all or self.epoch == 0
        owned = frozenset(self.reading) if says_owned or full else None
        if self.epoch == 0:
            self.reading, owned = set(), frozenset()
        self.call = self._send(self.epoch, owned, full=full)

    def repeat(self, age: int) -> None:
        """A request of an earlier epoch arrives late, or again, by a connection that broke. Its
        answer goes nowhere, and may be the one that has the assignment: it says all again."""
        old = [one for one in self.sent if 0 < one.epoch < self.epoch]
        if old and self.is_alive:
            late = old[-1 - age % len(old)]
            call: Call[HeartbeatAnswer] = self.g.call(f"late one of {self.name}")
            self.g.send(_with_call(late, call))
            self.must_say_all = True

    def lose_answer(self) -> None:
        """The connection broke: whatever was answered, it does not know. It says all again."""
        if self.call is not None:
            self.call, self.must_say_all = None, True

    def read(self) -> None:
        """Read the answer, if there is one."""
        call = self.call
        if call is None or call.is_parked:
            return
        self.call = None
        answer = call.answer
        self.codes.add(answer.error)
        if answer.error is ErrorCode.NONE:
            self.epoch, self.must_say_all = answer.epoch, self.topics != self.said
            if answer.assigned is not None:
                self.wanted = frozenset(answer.assigned)
        elif answer.error in FENCED:
            self.reading, self.wanted = set(), frozenset()
            self.epoch, self.must_say_all = 0, True
        else:
            self.must_say_all = True

    def act(self) -> None:
        """Give back first; what is new is taken afterwards."""
        if not self.is_alive or self.epoch <= 0:
            return
        if self.reading - self.wanted:
            self.reading &= self.wanted
        else:
            self.reading |= self.wanted

    def _send(
        self, epoch: int, owned: frozenset[TopicIdPartition] | None, *, full: bool
    ) -> Call[HeartbeatAnswer]:
        call: Call[HeartbeatAnswer] = self.g.call(f"heartbeat of {self.name}")
        if full:
            self.said = self.topics
        event = ConsumerHeartbeat(
            call,
            self.member_id,
            epoch,
            self.name,
            "host",
            self.instance,
            rebalance_timeout_ms=30_000 if full else -1,
            names=self.topics if full else None,
            owned=owned,
        )
        if owned is None or not self.sent or self.sent[-1].epoch != epoch:
            self.sent.append(event)
        self.g.send(event)
        return call


def _with_call(event: ConsumerHeartbeat, call: object) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        call,
        event.member_id,
        event.epoch,
        event.client_id,
        event.client_host,
        event.instance_id,
        event.rack_id,
        event.rebalance_timeout_ms,
        event.names,
        event.pattern,
        event.assignor,
        event.owned,
    )
