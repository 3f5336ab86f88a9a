"""Reading native streams in steps, so that no reply is arbitrarily large.

Entries of a native stream may have any size, and Redis can only limit their number. So each command
asks for a few, and the next one is sent while there is room for more: at most AT_ONCE entries of
any size are in a reply, in Redis' buffers and in ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from moldau.broker.errors import StoreFault
from moldau.broker.store.pipe import Pipe, command

AT_ONCE = 128
_SAMPLED = 8  # one entry in this many is measured: measuring all costs half as much as reading

RawEntries = list[tuple[bytes, list[bytes]]]
EntriesDone = Callable[[int | StoreFault, RawEntries | StoreFault], None]


class Expected(NamedTuple):
    first: bytes | None  # the id of the first entry from the wanted one on
    marks: int


GroupReadDone = Callable[[RawEntries | StoreFault, Expected | StoreFault], None]
GiveBack = Callable[[bytes, list[bytes]], None]


class _Steps:
    """What was read so far, and whether another step is needed."""

    def __init__(self, count: int, limit: int) -> None:
        self._count = count
        self._limit = limit
        self.entries: RawEntries = []
        self.asked = min(count, AT_ONCE)

    def wants_more(self, read: RawEntries) -> bool:
        """Add what was read; True if another step is needed."""
        if self.entries:
            self.entries += read
        else:
            self.entries = read
        left = self._count - len(self.entries)
        if left <= 0 or len(read) < self.asked:
            return False
        self._limit -= _SAMPLED * sum(sum(map(len, fields)) for _, fields in read[::_SAMPLED])
        self.asked = min(left, AT_ONCE)
        return self._limit > 0


def read_entries(
    pipe: Pipe, stream: bytes, marks: bytes, first: bytes, count: int, limit: int,
    done: EntriesDone,
) -> None:  # fmt: skip
    """Read about as many entries as fit the limit, and the number of marks."""
    steps = _Steps(count, limit)
    marked: list[Any] = []

    def got(reply: Any) -> None:
        if isinstance(reply, StoreFault):
            done(marked[0], reply)
        elif steps.wants_more(reply):
            ask(b"(" + reply[-1][0])
        else:
            done(marked[0], steps.entries)

    def ask(start: bytes) -> None:
        pipe.send((command("XRANGE", stream, start, "+", "COUNT", steps.asked),), got)

    pipe.send((command("ZCARD", marks),), marked.append)
    ask(first)


class GroupSteps:
    """XREADGROUP, and which entry should have come first if reading from `first`.

    The latter is asked afterwards: entries added in between come behind those read. It is asked in
    every step: if another consumer reads in the same group, there would be a gap otherwise.
    """

    def __init__(
        self, pipe: Pipe, stream: bytes, marks: bytes, group: str, member: str,
        count: int, limit: int, give_back: GiveBack, done: GroupReadDone,
    ) -> None:  # fmt: skip
        self._pipe = pipe
        self._where = stream, marks
        self._reader = group, member
        self._steps = _Steps(count, limit)
        self._give_back = give_back
        self._done = done
        self._read: Any = None
        self._expected: Expected | None = None  # of the first step

    def start(self, first: bytes) -> None:
        stream, marks = self._where
        words = ("GROUP", *self._reader, "COUNT", self._steps.asked, "STREAMS", stream, ">")
        self._pipe.send((command("XREADGROUP", *words),), self._on_entries)
        check = ("FCALL_RO", "moldau_first_from", 2, stream, marks, first)
        self._pipe.send((command(*check),), self._on_expected)

    def _on_entries(self, reply: Any) -> None:
        if not isinstance(reply, StoreFault):
            reply = reply[0][1] if reply else []
        self._read = reply

    def _on_expected(self, reply: Any) -> None:
        read, steps = self._read, self._steps
        expected = reply if isinstance(reply, StoreFault) else Expected(*reply)
        if (
            isinstance(read, StoreFault)
            or isinstance(expected, StoreFault)
            or expected.first != _id(read)
        ):
            if self._expected is None:
                self._done(read, expected)
            else:
                self._stop_before(read)
            return
        self._expected = self._expected or expected
        if steps.wants_more(read):
            self.start(_after(read[-1][0]))
        else:
            self._finish()

    def _stop_before(self, read: Any) -> None:
        """This step returned something else: the entries of the steps before it are valid."""
        if read and not isinstance(read, StoreFault):
            self._give_back(self._steps.entries[-1][0], [raw for raw, _ in read])
        self._finish()

    def _finish(self) -> None:
        assert self._expected is not None
        self._done(self._steps.entries, self._expected)


def _id(entries: RawEntries) -> bytes | None:
    return entries[0][0] if entries else None


def _after(entry_id: bytes) -> bytes:
    """The next id; the last sequence of a millisecond is never reached."""
    ms, _, sequence = entry_id.partition(b"-")
    return b"%b-%d" % (ms, int(sequence) + 1)
