"""The order of a client's replies, and the replies that each worker still owes. It does no I/O
itself.

Kafka clients expect replies in the order of their requests, while workers reply in any order. A
`ReplyQueue` has one slot per unanswered request of the client:

    WorkerReplies    the next reply of this worker connection, passed on as it arrives
    bytes            a reply that the router made
    GatheredReply    a reply merged from those of several workers

Bytes for the first slot are written to the client. Replies of the other workers wait in their
sockets, which are not read from meanwhile.

A worker replies in the order in which it was asked, so `WorkerReplies.owed` suffices to know what
each of its replies is for. Replies are passed on in the pieces in which they arrive; only the parts
of a gathered reply are collected completely.
"""

from __future__ import annotations

import logging
from collections import deque

from moldau.broker.wire.frame import LENGTH, LENGTH_SIZE
from moldau.broker.wire.framing import MIN_RESPONSE, FrameTracker, InvalidFrameSize
from moldau.broker.wire.primitives import MalformedMessage
from moldau.router.split import GatheredReply
from moldau.router.transport import PausableTransport, Pause, piece_of

logger = logging.getLogger("moldau.router")

MAX_UNANSWERED = 512  # requests; clients pipeline five by default
MAX_OWN_BYTES = 1 << 20  # bytes of the router's own replies that wait for their turn

MIN_REPLY = LENGTH_SIZE + MIN_RESPONSE

# The reply that a worker's response is a part of, and the worker that was asked.
PartOf = tuple[GatheredReply, int]


class WorkerReplies:
    """The replies of one worker connection: their purpose, and how far they were received.

    This is a record that its ReplyQueue reads and writes.
    """

    __slots__ = ("collected", "frames", "held", "owed", "partial_length", "transport")

    def __init__(self, transport: PausableTransport) -> None:
        self.transport = transport
        # The purpose of the next replies, in order. None: passed on to the client.
        self.owed: deque[PartOf | None] = deque()
        self.held = b""  # received before their turn
        self.partial_length = b""  # the first bytes of a reply's length
        self.frames = FrameTracker(MIN_RESPONSE)
        self.collected: bytearray | None = None  # the current reply, if it is a part

    def give_up(self) -> list[PartOf | None]:
        """Return the replies that a worker that is gone still owed."""
        owed = list(self.owed)
        self.owed.clear()
        self.held = self.partial_length = b""
        return owed


class ReplyQueue:
    __slots__ = ("_own_bytes", "_slots", "_transport")

    def __init__(self, transport: PausableTransport) -> None:
        self._transport = transport
        self._slots: deque[WorkerReplies | GatheredReply | bytes] = deque()
        self._own_bytes = 0

    def __len__(self) -> int:
        """The number of unanswered requests."""
        return len(self._slots)

    @property
    def has_room(self) -> bool:
        return len(self._slots) < MAX_UNANSWERED and self._own_bytes <= MAX_OWN_BYTES

    def clear(self) -> None:
        self._slots.clear()

    # --- what is expected ---

    def expect(self, replies: WorkerReplies) -> bool:
        """Expect the reply to the next request from this worker connection. Returns False if there
        is no room for another one."""
        slots = self._slots
        slots.append(replies)
        replies.owed.append(None)
        return len(slots) < MAX_UNANSWERED

    def expect_gathered(self, gathered: GatheredReply) -> None:
        """Expect the reply to the next request from several workers: see `expect_part`, then
        `advance`."""
        self._slots.append(gathered)

    def expect_part(self, replies: WorkerReplies, gathered: GatheredReply, worker: int) -> None:
        """Expect the next reply of this worker connection as that worker's part of a gathered
        reply."""
        replies.owed.append((gathered, worker))

    # --- replies ---

    def add(self, reply: bytes) -> None:
        """Add the router's own reply to the next request."""
        if self._slots:
            self._slots.append(reply)
            self._own_bytes += len(reply)
            self.advance()
        else:
            self._transport.write(reply)

    def receive(self, replies: WorkerReplies, data: bytes) -> None:
        """Take bytes from a worker."""
        owed, slots = replies.owed, self._slots
        if (
            owed  # the usual case: one whole reply, and it is its turn
            and owed[0] is None
            and slots[0] is replies
            and not (replies.frames.left or replies.partial_length or replies.held)
            and len(data) >= MIN_REPLY
            and LENGTH.unpack_from(data)[0] == len(data) - LENGTH_SIZE
        ):
            owed.popleft()
            slots.popleft()
            self._transport.write(data)
            if slots and slots[0] is not replies:
                self.advance()
        elif replies.held:
            replies.held += data
        else:
            self._cut(replies, data)
            if slots and slots[0] is not replies:
                self.advance()

    def advance(self) -> None:
        """Write everything whose turn it is to the client."""
        slots = self._slots
        while slots:
            slot = slots[0]
            if isinstance(slot, WorkerReplies):
                data = slot.held
                if not data:
                    break
                slot.held = b""
                self._cut(slot, data)
                if not slot.held:
                    slot.transport.resume(Pause.REPLIES_OUT_OF_TURN)
                continue
            frame = slot if isinstance(slot, bytes) else slot.frame
            if frame is None:
                break
            if frame is slot:
                self._own_bytes -= len(frame)
            slots.popleft()
            self._transport.write(frame)

    def _cut(self, replies: WorkerReplies, data: bytes) -> None:
        """Cut received bytes into replies or pieces: for the client, a gathered reply, or a later
        turn."""
        owed, slots, frames = replies.owed, self._slots, replies.frames
        if replies.partial_length:
            data = replies.partial_length + data
            replies.partial_length = b""
        at = start = 0  # contiguous bytes for the client are written in one piece
        have = len(data)
        while at < have:
            if frames.left:
                at += frames.resume(have - at)
            else:
                try:
                    size = frames.size_at(data, at)
                except InvalidFrameSize as fault:
                    self._close(str(fault))
                    return
                if size is None:
                    replies.partial_length = data[at:]
                    break
                if not owed:
                    self._close("a reply to no request")
                    return
                if owed[0] is not None:
                    if start != at:
                        self._transport.write(piece_of(data, start, at))
                    start = at
                    replies.collected = bytearray()
                elif slots[0] is not replies:
                    replies.held = data[at:]
                    replies.transport.pause(Pause.REPLIES_OUT_OF_TURN)
                    break
                at = frames.enter(at, size, have)
            collected = replies.collected
            if collected is not None:
                collected += data[start:at]
                start = at
            if not frames.left:
                part_of = owed[0]
                if part_of is None:
                    slots.popleft()
                else:
                    assert collected is not None
                    replies.collected = None
                    if not _deliver(part_of, collected):
                        # It is still owed: it is given up when the connection has ended.
                        replies.transport.abort()
                        return
                owed.popleft()
        if start != at:
            self._transport.write(piece_of(data, start, at))

    def _close(self, reason: str) -> None:
        """Close the client: the worker's replies do not match the requests, so earlier ones may be
        wrong too."""
        logger.error("closing a client: its worker sent %s", reason)
        self._transport.abort()


def _deliver(part_of: PartOf, collected: bytearray) -> bool:
    gathered, worker = part_of
    try:
        gathered.deliver(worker, bytes(collected[LENGTH_SIZE:]))
    except MalformedMessage as fault:
        logger.warning("closing a connection to worker %d: %s", worker, fault)
        return False
    return True
