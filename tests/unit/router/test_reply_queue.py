"""The order of replies without sockets: what is written, and which workers are read from."""

from __future__ import annotations

import random

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.batch import Buffer
from moldau.broker.wire.frame import LENGTH, LENGTH_SIZE, read_response, response_frame
from moldau.broker.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from moldau.router.reply_queue import MAX_OWN_BYTES, MAX_UNANSWERED, ReplyQueue, WorkerReplies
from moldau.router.split import GatheredReply, RequestPart
from moldau.router.transport import PausableTransport

DESCRIBE = APIS[ApiKey.DESCRIBE_GROUPS]


class Recorder(PausableTransport):
    """Keeps what is written, and whether it was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    @property
    def written(self) -> bytes:
        return b"".join(self.unsent)

    def abort(self) -> None:
        self.aborted = True


class Client:
    """A queue and the connections to two workers."""

    def __init__(self) -> None:
        self.transport = Recorder()
        self.queue = ReplyQueue(self.transport)
        self.links = [Recorder(), Recorder()]
        self.workers = [WorkerReplies(link) for link in self.links]


def reply(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def gathered_of_both() -> GatheredReply:
    parts = [RequestPart(worker, b"", DescribeGroupsRequest([f"g{worker}"])) for worker in (0, 1)]
    return GatheredReply(DESCRIBE, 5, 9, ["g0", "g1"], parts)


def described(group: str) -> bytes:
    response = DescribeGroupsResponse(groups=[DescribedGroup(group_id=group)])
    return b"".join(response_frame(DESCRIBE, 5, 9, response))


def test_a_reply_in_turn_is_passed_on() -> None:
    client = Client()
    first = client.workers[0]
    client.queue.expect(first)
    client.queue.receive(first, reply(b"one "))
    assert client.transport.written == reply(b"one ")
    assert len(client.queue) == 0


def test_a_reply_out_of_turn_waits_and_its_worker_is_not_read_from() -> None:
    client = Client()
    first, second = client.workers
    client.queue.expect(first)
    client.queue.expect(second)
    client.queue.receive(second, reply(b"two "))
    assert client.transport.written == b""
    assert not client.links[1].is_reading
    client.queue.receive(second, b"")  # in flight when it was paused
    client.queue.receive(first, reply(b"one "))
    assert client.transport.written == reply(b"one ") + reply(b"two ")
    assert client.links[1].is_reading
    assert len(client.queue) == 0


def test_a_reply_of_the_router_waits_for_those_before_it() -> None:
    client = Client()
    client.queue.add(b"at once")
    assert client.transport.written == b"at once"
    client.queue.expect(client.workers[0])
    client.queue.add(b"later")
    assert client.transport.written == b"at once"
    client.queue.receive(client.workers[0], reply(b"one "))
    assert client.transport.written == b"at once" + reply(b"one ") + b"later"


def test_a_large_reply_is_passed_on_in_the_pieces_in_which_it_arrives() -> None:
    client = Client()
    first = client.workers[0]
    client.queue.expect(first)
    whole = reply(bytes(100_000))
    client.queue.receive(first, whole[:3])
    assert client.transport.written == b""  # not even its length is known
    client.queue.receive(first, whole[3:50_000])
    assert client.transport.written == whole[:50_000]
    client.queue.receive(first, whole[50_000:])
    assert client.transport.written == whole
    assert len(client.queue) == 0


def test_a_gathered_reply_is_written_in_turn_when_all_parts_are_there() -> None:
    client = Client()
    first, second = client.workers
    gathered = gathered_of_both()
    client.queue.expect_gathered(gathered)
    client.queue.expect_part(first, gathered, 0)
    client.queue.expect_part(second, gathered, 1)
    client.queue.expect(first)
    part = described("g0")
    # In pieces, and with the next reply right behind it.
    client.queue.receive(first, part[:7])
    client.queue.receive(first, part[7:] + reply(b"next"))
    assert client.transport.written == b""
    client.queue.receive(second, described("g1"))
    merged = client.transport.written[: -len(reply(b"next"))]
    assert client.transport.written.endswith(reply(b"next"))
    _, response = read_response(DESCRIBE, 5, merged[LENGTH_SIZE:])
    assert isinstance(response, DescribeGroupsResponse)
    assert [each.group_id for each in response.groups] == ["g0", "g1"]


def test_a_worker_that_is_lost_gives_up_what_it_owes() -> None:
    client = Client()
    first, second = client.workers
    gathered = gathered_of_both()
    client.queue.expect_gathered(gathered)
    for number, replies in enumerate(client.workers):
        client.queue.expect_part(replies, gathered, number)
    client.queue.receive(first, described("g0"))
    assert second.give_up() == [(gathered, 1)]
    gathered.fail(1)
    client.queue.advance()
    _, response = read_response(DESCRIBE, 5, client.transport.written[LENGTH_SIZE:])
    assert isinstance(response, DescribeGroupsResponse)
    codes = [each.error_code for each in response.groups]
    assert codes == [0, ErrorCode.COORDINATOR_NOT_AVAILABLE]
    client.queue.expect(first)
    assert first.give_up() == [None]


def test_a_part_that_cannot_be_read_closes_its_worker_connection_and_stays_owed() -> None:
    client = Client()
    first, second = client.workers
    gathered = gathered_of_both()
    client.queue.expect_gathered(gathered)
    client.queue.expect_part(first, gathered, 0)
    client.queue.expect_part(second, gathered, 1)
    client.queue.receive(second, reply(b"garbage"))
    assert client.links[1].aborted
    assert not client.links[0].aborted
    assert not client.transport.aborted
    assert second.give_up() == [(gathered, 1)]


def test_a_part_behind_a_reply_out_of_turn_closes_the_connection_it_came_by() -> None:
    client = Client()
    first, second = client.workers
    gathered = gathered_of_both()
    client.queue.expect(first)
    client.queue.expect(second)
    client.queue.expect_gathered(gathered)
    client.queue.expect_part(second, gathered, 1)
    client.queue.receive(second, reply(b"two ") + reply(b"garbage"))
    client.queue.receive(first, reply(b"one "))  # reads what was held
    assert client.links[1].aborted
    assert not client.links[0].aborted


@pytest.mark.parametrize("data", [reply(b"more"), LENGTH.pack(-1), LENGTH.pack(3) + b"abc"])
def test_a_worker_out_of_step_closes_the_client(data: bytes) -> None:
    client = Client()
    if data != reply(b"more"):
        client.queue.expect(client.workers[0])
    client.queue.receive(client.workers[0], data)
    assert client.transport.aborted
    assert client.transport.written == b""


def test_there_is_room_for_so_many_unanswered_requests() -> None:
    client = Client()
    first = client.workers[0]
    for number in range(1, MAX_UNANSWERED + 1):
        assert client.queue.has_room
        assert client.queue.expect(first) == (number < MAX_UNANSWERED)
    assert not client.queue.has_room
    client.queue.receive(first, reply(b"one "))
    assert client.queue.has_room


def test_there_is_room_for_so_many_bytes_of_the_routers_own_replies() -> None:
    client = Client()
    first = client.workers[0]
    client.queue.expect(first)
    client.queue.add(bytes(MAX_OWN_BYTES))
    assert client.queue.has_room
    client.queue.add(b"!")
    assert not client.queue.has_room
    client.queue.receive(first, reply(b"one "))
    assert client.queue.has_room
    assert len(client.queue) == 0


@pytest.mark.parametrize("seed", range(20))
def test_replies_keep_the_order_of_requests_in_whatever_pieces_they_arrive(seed: int) -> None:
    rng = random.Random(seed)
    client = Client()
    streams = [bytearray(), bytearray()]
    expected = b""
    for _ in range(60):
        frame = reply(rng.randbytes(rng.choice((4, 10, 9000))))
        worker = rng.choice((0, 1, None))
        if worker is None:
            client.queue.add(frame)
        else:
            client.queue.expect(client.workers[worker])
            streams[worker] += frame
        expected += frame
    while any(streams):
        worker = rng.choice([number for number in (0, 1) if streams[number]])
        size = rng.choice((1, 5, 100, 20_000))
        piece: Buffer = bytes(streams[worker][:size])
        del streams[worker][:size]
        client.queue.receive(client.workers[worker], bytes(piece))
    assert client.transport.written == expected
    assert len(client.queue) == 0
    assert all(link.is_reading for link in client.links)
