"""A producer of raw requests that notes what it was acknowledged, at whichever worker it asks.

It does what clients do with an error that can be retried: the same batch again, until it is there.
"""

import time

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.messages.init_producer_id import InitProducerIdRequest
from tests.support.proofs.observer import NOT_THERE, PATIENCE_S, RETRIABLE, Observer
from tests.support.raw.client import RawClient, make_batch


class ObservedProducer:
    """Idempotent when it has a producer id."""

    def __init__(self, observer: Observer, name: str, producer_id: int = -1) -> None:
        self._observer = observer
        self._name = name.encode()
        self._id = producer_id
        self._next = 0
        self._last: tuple[int, list[bytes]] = (0, [])
        if producer_id >= 0:
            observer.idempotent.add(self._name)

    def send(self, port: int, count: int, *, size: int = 20, acks: int = -1) -> int:
        """A batch of new records, until it is there; its base offset."""
        self._make(count, size)
        return self.again(port, acks=acks)

    def send_once(self, port: int, count: int, *, size: int = 20, acks: int = -1) -> ErrorCode:
        """The same, whatever the answer."""
        self._make(count, size)
        return self.attempt(port, acks=acks)[0]

    def _make(self, count: int, size: int) -> None:
        first, self._next = self._next, self._next + count
        numbers = range(first, self._next)
        self._last = (first, [b"%b:%d|%b" % (self._name, n, b"x" * size) for n in numbers])

    def again(self, port: int, *, acks: int = -1) -> int:
        """The last batch once more, as after a lost reply."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            code, base = self.attempt(port, acks=acks)
            if code is ErrorCode.NONE:
                return base
            assert code in RETRIABLE, f"{self._name!r} at port {port}: {code.name}"
            assert time.monotonic() < deadline, f"{self._name!r} at port {port}: {code.name}"
            time.sleep(0.02)

    def attempt(self, port: int, *, acks: int = -1) -> tuple[ErrorCode, int]:
        first, values = self._last
        batch = make_batch(
            [(None, value, 1_000) for value in values],
            producer_id=self._id,
            producer_epoch=0 if self._id >= 0 else -1,
            base_sequence=first if self._id >= 0 else -1,
        )
        try:
            with RawClient(port) as client:
                answer = client.produce(self._observer.topic, batch, acks=acks)
        except NOT_THERE:
            return ErrorCode.REQUEST_TIMED_OUT, -1
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE:
            for index, value in enumerate(values):
                self._observer.acknowledged(0, answer.base_offset + index, value)
        return code, answer.base_offset


def new_producer_id(port: int) -> int:
    """Ask a worker for a producer id until it has one."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with RawClient(port) as client:
                answer = client.call(InitProducerIdRequest(transactional_id=None))
        except NOT_THERE:
            answer = None
        if answer is not None and answer.error_code == 0:
            return int(answer.producer_id)
        assert time.monotonic() < deadline, answer
        time.sleep(0.02)
