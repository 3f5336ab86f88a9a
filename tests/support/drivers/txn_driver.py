"""Transactions in virtual time: producers, a manual clock, a dict as the store.

t = TxnDriver()
a = t.init()
t.add(a, P0)
t.end(a, commit=True)
t.assert_state("CompleteCommit")

`TxnWorld` is what it runs in; here is what producers do.
"""

from typing import Any

from msgspec.structs import replace

from moldau.broker.errors import ErrorCode
from moldau.broker.machine import TimerKey
from moldau.broker.txn.effects import AddAnswer, EndAnswer, InitAnswer
from moldau.broker.txn.events import Add, End, Init
from moldau.broker.txn.record import TxnPartition, encode, group_offsets_partition
from moldau.broker.txn.transaction_data import TimerKind
from moldau.broker.txn.transitions import NONE, Identity
from tests.support.drivers.txn_world import Call, TxnWorld

P0 = TxnPartition("orders", b"o" * 16, 0)
P1 = TxnPartition("orders", b"o" * 16, 1)
P2 = TxnPartition("totals", b"t" * 16, 0)
GROUPS = group_offsets_partition(7)

TIMEOUT_MS = 60_000


class TxnDriver(TxnWorld):
    @classmethod
    def at_epoch(cls, epoch: int, **config: int) -> tuple["TxnDriver", Identity]:
        """An Empty id whose producer has this epoch."""
        t = cls(**config)
        who = Identity(t.init().producer_id, epoch)
        t.stored["t"] = encode(replace(t.record(), producer_epoch=epoch))
        t.restart()
        return t, who

    # --- one request each ---

    def call_init(
        self,
        given: Identity = NONE,
        *,
        timeout_ms: int = TIMEOUT_MS,
        version: int = 5,
        name: str = "t",
    ) -> Call[InitAnswer]:
        call: Call[InitAnswer] = self.call(f"init of {given}")
        self.send(name, Init(call, timeout_ms, *given, version=version))
        return call

    def call_add(
        self, who: Identity, *places: TxnPartition, name: str = "t", **options: Any
    ) -> Call[AddAnswer]:
        call: Call[AddAnswer] = self.call(f"add by {who}")
        self.send(name, Add(call, *who, places, **options))
        return call

    def call_verify(self, who: Identity, *places: TxnPartition, **options: Any) -> Call[AddAnswer]:
        return self.call_add(who, *places, verify_only=True, **options)

    def call_end(
        self, who: Identity, *, commit: bool, version: int = 5, name: str = "t"
    ) -> Call[EndAnswer]:
        call: Call[EndAnswer] = self.call(f"end by {who}")
        self.send(name, End(call, *who, commit=commit, version=version))
        return call

    # --- requests that succeed ---

    def init(self, given: Identity = NONE, **options: Any) -> Identity:
        return identity(self.call_init(given, **options))

    def add(self, who: Identity, *places: TxnPartition, **options: Any) -> int:
        """Returns the number of the transaction."""
        answer = self.call_add(who, *places, **options).answer
        assert answer == AddAnswer(ErrorCode.NONE, answer.number)
        return answer.number

    def end(self, who: Identity, *, commit: bool, **options: Any) -> Identity:
        """Returns what the producer goes on with."""
        return identity(self.call_end(who, commit=commit, **options))

    # --- what became of it ---

    def assert_state(self, state: str | None) -> None:
        assert self.state() == state

    def armed(self, kind: TimerKind) -> int | None:
        """Milliseconds until that timer fires; None: it is not armed."""
        at = self.timers.get(TimerKey("t", kind))
        return None if at is None else at - self.now


def identity(call: Call[Any]) -> Identity:
    answer = call.answer
    assert answer.error is ErrorCode.NONE, answer
    return Identity(answer.producer_id, answer.producer_epoch)


def error(call: Call[Any]) -> ErrorCode:
    """The error code of a call that was answered."""
    answered: ErrorCode = call.answer.error
    return answered
