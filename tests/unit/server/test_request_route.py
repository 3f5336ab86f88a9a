"""Repeated requests that are answered without a call of their own: in the order of requests."""

import asyncio
import struct
from typing import cast

from moldau.broker.server.call import Call, RequestRoute
from moldau.broker.server.connection import Connection
from moldau.broker.server.flow_control import MAX_SERVED_PER_TURN
from moldau.broker.server.limits import Budget
from moldau.broker.settings.processes import Listener
from moldau.broker.wire.frame import CORRELATION_ID_END, LENGTH_SIZE, read_request_header
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest

KIND = struct.pack(">hh", 18, 0)


def request(correlation_id: int, body: bytes) -> bytes:
    frame = KIND + struct.pack(">ih", correlation_id, -1) + body
    return struct.pack(">i", len(frame)) + frame


def reply(correlation_id: int, note: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(note), correlation_id) + note


class Known(RequestRoute):
    """Answers requests whose body begins with a word at once, unless they end in `?`."""

    def __init__(self, word: bytes) -> None:
        first = bytearray(request(0, word)[LENGTH_SIZE:])
        super().__init__(read_request_header(first), ApiVersionsRequest())
        self.set_bytes(KIND, bytes(first[CORRELATION_ID_END:]))
        self._word = word

    def varying(self, canonical: bytes) -> tuple[int, int]:
        return len(canonical), len(canonical)

    def answer(self, frame: bytearray) -> bytes | None:
        if frame.endswith(b"?"):
            return None
        return reply(struct.unpack_from(">i", frame, 4)[0], b"at once " + self._word)

    def serve(self, call: Call, frame: bytearray) -> bool:
        answer = self.answer(frame)
        if answer is None:
            return False
        call.reply_with([answer])
        return True


class Answering(Known):
    """Has another answer."""

    def __init__(self, word: bytes, note: bytes) -> None:
        super().__init__(word)
        self._note = note

    def answer(self, frame: bytearray) -> bytes | None:
        return reply(struct.unpack_from(">i", frame, 4)[0], self._note)


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("192.0.2.1", 1)

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        self.written += b"".join(parts)


class Served:
    """A connection that knows some words; what it does not answer by them waits for the test."""

    def __init__(self, *words: bytes) -> None:
        self.calls: list[Call] = []
        self.transport = Transport()
        self.budget = Budget(1 << 20, 1 << 20)
        self.connection = Connection(self._keep, self.budget, set(), 1 << 20, Listener())
        self.connection.connection_made(cast("asyncio.BaseTransport", self.transport))
        for word in words:
            self.connection.routes.add(Known(word))

    def _keep(self, call: Call, frame: bytearray) -> None:
        self.calls.append(call)

    def receive(self, *requests: bytes) -> None:
        data = b"".join(requests)
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    async def wrote(self, *replies: bytes) -> bool:
        await asyncio.sleep(0)  # what is answered later goes out at the end of its turn
        await asyncio.sleep(0)
        return self.transport.written == b"".join(replies)


async def test_it_is_answered_in_the_turn_it_came_in() -> None:
    served = Served(b"ping")
    served.receive(request(1, b"ping"), request(2, b"ping"))
    assert served.transport.written == reply(1, b"at once ping") + reply(2, b"at once ping")
    assert not served.calls
    assert served.budget.used == 0


async def test_it_does_not_overtake_a_request_before_it() -> None:
    served = Served(b"ping")
    served.receive(request(1, b"slow"))
    served.receive(request(2, b"ping"))
    assert await served.wrote()
    served.calls[0].reply_with([reply(1, b"slow")])
    assert await served.wrote(reply(1, b"slow"), reply(2, b"at once ping"))
    served.receive(request(3, b"ping"))
    assert served.transport.written.endswith(reply(3, b"at once ping"))
    assert served.budget.used == 0


async def test_it_waits_while_the_connection_is_held() -> None:
    served = Served(b"ping")
    served.receive(request(1, b"slow"))
    served.connection.hold()
    served.receive(request(2, b"ping"))
    served.calls[0].reply_with([reply(1, b"slow")])
    assert await served.wrote(reply(1, b"slow"))
    served.connection.resume()
    assert await served.wrote(reply(1, b"slow"), reply(2, b"at once ping"))


async def test_one_that_goes_on_differently_is_served_as_any_other() -> None:
    served = Served(b"ping")
    served.receive(request(1, b"ping"), request(2, b"ping, or not?"), request(3, b"ping"))
    assert await served.wrote(reply(1, b"at once ping"))
    assert [call.header.correlation_id for call in served.calls] == [2]
    served.calls[0].reply_with([reply(2, b"")])
    assert await served.wrote(reply(1, b"at once ping"), reply(2, b""), reply(3, b"at once ping"))


async def test_a_route_that_replaces_another_is_found_at_once() -> None:
    served = Served(b"ping")
    served.receive(request(1, b"ping"))
    served.connection.routes.add(Answering(b"ping", b"another"))
    served.receive(request(2, b"ping"))
    assert served.transport.written == reply(1, b"at once ping") + reply(2, b"another")


async def test_no_connection_is_served_without_end_in_one_turn() -> None:
    """Others get their turn however much one sends that can be answered at once."""

    served = Served(b"ping")
    numbers = range(5 * MAX_SERVED_PER_TURN // 2)
    served.receive(*(request(number, b"ping") for number in numbers))
    answers = [reply(number, b"at once ping") for number in numbers]
    assert served.transport.written == b"".join(answers[:MAX_SERVED_PER_TURN])
    assert not served.transport.reading
    for _ in range(6):
        await asyncio.sleep(0)
    assert served.transport.written == b"".join(answers)
    assert served.transport.reading


async def test_several_kinds_on_one_connection_are_distinguished() -> None:
    served = Served(b"ping", b"pong", b"other word")
    words = [b"ping", b"pong", b"pong", b"other word", b"ping", b"other word"]
    served.receive(*(request(number, word) for number, word in enumerate(words)))
    assert served.transport.written == b"".join(
        reply(number, b"at once " + word) for number, word in enumerate(words)
    )
