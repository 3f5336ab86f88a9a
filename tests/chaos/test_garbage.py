"""Whatever a client sends, a worker stays alive, its memory bounded, and everybody else is served.

Each test does its worst to one worker while a witness, a client that behaves, goes on producing and
fetching through the same worker. Behaviours of section 1 carry its number.
"""

import contextlib
import os
import random
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from itertools import count

import psutil  # type: ignore[import-untyped]
import pytest

from broker.errors import ErrorCode
from broker.wire.apis import APIS, ApiKey
from broker.wire.frame import request_frame
from broker.wire.messages.api_versions import ApiVersionsRequest
from broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from broker.wire.messages.metadata import MetadataRequest
from broker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.hammer import worker_ports
from tests.support.raw_calls import create_topic
from tests.support.raw_client import NAMED_FETCH, NAMED_PRODUCE, RawClient, make_batch, records_in
from tests.support.running import Broker, running_broker, wait_until

MIB = 1 << 20
LIMIT = 100 * MIB
INFLIGHT = 64 * MIB

_names = (f"garbage-{number}" for number in count())


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker(workers=2, inflight_bytes="64mb", tail_cache_bytes="4mb") as started:
        yield started


class Witness:
    """A client that behaves, on a connection of its own."""

    def __init__(self, port: int, topic: str) -> None:
        self._port, self._topic = port, topic
        self._stop = threading.Event()
        self._fault: BaseException | None = None
        self.served = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with RawClient(self._port, timeout=20) as client:
                while not self._stop.is_set():
                    value = b"%d" % self.served
                    answer = client.produce(self._topic, make_batch([(None, value, 1)]))
                    assert answer.error_code == 0, answer
                    found = client.fetch(self._topic, answer.base_offset)
                    assert [record.value for record in records_in(found)] == [value]
                    self.served += 1
                    time.sleep(0.002)
        except BaseException as fault:
            self._fault = fault

    def must_be_served(self) -> None:
        before = self.served
        wait_until(lambda: self.served > before + 3 or self._fault is not None, 20, "served")
        if self._fault is not None:
            raise self._fault

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(25)
        if self._fault is not None:
            raise self._fault


class Victim:
    """The worker it is done to: its port, and what must not change."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.port = worker_ports(broker)[0]
        self._pids = broker.pids("worker")
        self._process = psutil.Process(self._pids[0])
        self._log_size = len(broker.log())
        self._memory = self._process.memory_info().rss
        self._peak = self._memory
        with RawClient(self.port) as client:
            self.topic = next(_names)
            create_topic(client, self.topic)
            self._witnessed = next(_names)
            create_topic(client, self._witnessed)
        self.call_witness()
        self.witness.must_be_served()

    def call_witness(self) -> None:
        self.witness = Witness(self.port, self._witnessed)

    def grown(self) -> int:
        """Bytes of memory more than at the beginning, at most."""
        self._peak = max(self._peak, self._process.memory_info().rss)
        return int(self._peak - self._memory)

    def said(self) -> str:
        return self.broker.log()[self._log_size :]

    def must_say(self, why: str) -> None:
        wait_until(lambda: why in self.said(), 10, f"the log says {why!r}: {self.said()[-2000:]}")

    def must_be_well(self) -> None:
        self.grown()
        self.witness.must_be_served()
        self.witness.finish()
        assert self.broker.pids("worker") == self._pids

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 20)

    def closes(self, data: bytes) -> None:
        """Send something; the worker closes the connection, and answers nothing."""
        with self.connect() as client, contextlib.suppress(ConnectionError):
            client.sendall(data)
            assert client.recv(1) == b"", f"answered {data[:40]!r}"


@pytest.fixture
def victim(broker: Broker) -> Iterator[Victim]:
    chosen = Victim(broker)
    yield chosen
    chosen.must_be_well()


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(key: int, version: int, *, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", key, version, 1, -1) + (b"\0" if flexible else b"")


# --- what is no request ---


@pytest.mark.parametrize("length", [-1, -(1 << 31), 0, 3, LIMIT + 1, (1 << 31) - 1])
def test_1_absurd_lengths(victim: Victim, length: int) -> None:
    victim.closes(struct.pack(">i", length) + b"x" * 100)
    victim.must_say(f"a frame of {length} bytes")


def test_1_http(victim: Victim) -> None:
    victim.closes(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    victim.must_say("is it a Kafka client?")


def test_1_tls(victim: Victim) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with victim.connect() as raw, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(raw).close()
    victim.must_say("is it a Kafka client?")


def test_1_random_bytes(victim: Victim) -> None:
    chance = random.Random(1)
    for _ in range(200):
        with victim.connect() as client, contextlib.suppress(ConnectionError):
            client.sendall(chance.randbytes(chance.randint(1, 2_000)))
            client.shutdown(socket.SHUT_WR)
            client.settimeout(5)
            while client.recv(65536):
                pass


def test_1_frames_of_random_bytes_and_mutated_requests(victim: Victim) -> None:
    """Well framed, so that every decoder gets its share. An answer is fine too."""
    chance = random.Random(2)
    requests = [
        request_frame(api, version, 1, "mutated", api.request())
        for api in APIS.values()
        for version in range(api.lowest, api.highest + 1)
    ]
    batch = memoryview(make_batch([(b"k", b"v" * 50, 1)]))
    data = [TopicProduceData(name=victim.topic, partition_data=[PartitionProduceData(0, batch)])]
    full = ProduceRequest(acks=1, timeout_ms=100, topic_data=data)
    requests += [
        request_frame(APIS[ApiKey.PRODUCE], version, 1, "m", full) for version in range(3, 13)
    ] * 10
    for _ in range(1_500):
        frame = bytearray(chance.choice(requests)[4:])
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(8, len(frame)) if len(frame) > 8 else 0
            kind = chance.random()
            if kind < 0.6:
                frame[at] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
            elif kind < 0.8:
                del frame[at:]
            else:
                frame[at:at] = chance.randbytes(chance.randint(1, 9))
            if len(frame) <= 8:
                frame += bytes(8)
        # Nobody waits for the answer of a fetch that may park for weeks.
        with victim.connect() as client, contextlib.suppress(ConnectionError):
            client.sendall(framed(bytes(frame)) + framed(header(18, 0)))
            client.settimeout(0.005)
            with contextlib.suppress(TimeoutError):
                client.recv(65536)
    assert victim.grown() < 100 * MIB


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("Produce", header(0, 8) + b"\xff\xff\0\1\0\0\0\0" + struct.pack(">i", (1 << 31) - 1)),
        ("Produce", header(0, 9, flexible=True) + b"\0\0\1\0\0\0\0" + b"\xff\xff\xff\xff\x0f"),
        ("Metadata", header(3, 4) + struct.pack(">i", 1 << 30)),
        ("Metadata", header(3, 9, flexible=True) + b"\xff\xff\xff\xff\x0f"),
        ("Metadata", header(3, 4) + struct.pack(">ih", 1, 32_000) + b"short"),
        ("ListOffsets", header(2, 1) + struct.pack(">ii", -1, -2)),
    ],
)
def test_1_counts_and_lengths_beyond_the_frame(victim: Victim, name: str, body: bytes) -> None:
    victim.closes(framed(body))
    victim.must_say(f"malformed {name}")
    assert victim.grown() < 20 * MIB


def test_1_a_hundred_megabytes_of_tiny_elements(victim: Victim) -> None:
    """Each takes forty times its bytes once decoded: they are counted first."""
    topics = 30 * MIB
    body = header(3, 4) + struct.pack(">i", topics) + b"\0\1a" * topics
    with victim.connect() as client, contextlib.suppress(ConnectionError):
        client.sendall(framed(body))
        assert client.recv(1) == b""
    victim.must_say("malformed Metadata")
    assert victim.grown() < 300 * MIB


@pytest.mark.parametrize(("key", "version"), [(0, 99), (3, -1), (999, 0), (-5, 0), (71, 0)])
def test_1_unknown_apis_and_versions(victim: Victim, key: int, version: int) -> None:
    victim.closes(framed(header(key, version)))
    victim.must_say("is not served")


def test_1_api_versions_in_an_unknown_version_is_answered_in_v0(victim: Victim) -> None:
    with victim.connect() as client:
        client.sendall(framed(header(18, 99, flexible=True)))
        answer = client.recv(1 << 16)
        size, correlation, error, entries = struct.unpack_from(">iihi", answer)
        assert (size, correlation) == (len(answer) - 4, 1)
        assert error == ErrorCode.UNSUPPORTED_VERSION
        named = [struct.unpack_from(">hhh", answer, 14 + 6 * index) for index in range(entries)]
        assert (18, 0, 4) in named
        client.sendall(framed(header(18, 0)))  # the connection lives on
        assert client.recv(1 << 16)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_1_produce_below_v3_is_advertised_and_refused(victim: Victim, version: int) -> None:
    batch = memoryview(make_batch([(None, b"x", 1)]))
    data = [TopicProduceData(name=victim.topic, partition_data=[PartitionProduceData(0, batch)])]
    with RawClient(victim.port) as client:
        keys = {api.api_key: api for api in client.call(ApiVersionsRequest()).api_keys}
        assert keys[0].min_version == 0
        request = ProduceRequest(acks=1, timeout_ms=1_000, topic_data=data)
        (answer,) = client.call(request, version).responses[0].partition_responses
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_1_bytes_behind_a_request_are_ignored(victim: Victim) -> None:
    body = request_frame(APIS[ApiKey.METADATA], 12, 7, "x", MetadataRequest(topics=None))[4:]
    with victim.connect() as client:
        client.sendall(framed(body + b"more than there should be"))
        assert struct.unpack_from(">i", client.recv(1 << 20), 4) == (7,)


def test_1_unknown_tagged_fields_are_skipped(victim: Victim) -> None:
    body = bytearray(
        request_frame(APIS[ApiKey.METADATA], 12, 7, None, MetadataRequest(topics=None))[4:]
    )
    assert body[-1] == 0
    body[-1:] = b"\1\x63\3abc"  # one tagged field, number 99
    with victim.connect() as client:
        client.sendall(framed(bytes(body)))
        assert struct.unpack_from(">i", client.recv(1 << 20), 4) == (7,)


# --- those who take their time ---


def test_half_a_frame_then_silence_and_one_byte_at_a_time(victim: Victim) -> None:
    silent = [victim.connect() for _ in range(50)]
    slow = [victim.connect() for _ in range(50)]
    request = framed(header(18, 0))
    for client in silent:
        client.sendall(framed(b"x" * 10_000)[:5_000])
    for position in range(len(request)):
        for client in slow:
            client.sendall(request[position : position + 1])
        if position % 4 == 0:
            victim.witness.must_be_served()
    for client in slow:
        assert client.recv(8)
    for client in (*silent, *slow):
        client.close()
    assert victim.grown() < 30 * MIB


def test_claims_of_a_hundred_megabytes(victim: Victim) -> None:
    clients = [victim.connect() for _ in range(200)]
    for client in clients:
        client.sendall(struct.pack(">i", LIMIT) + b"x" * 10)
    victim.witness.must_be_served()
    time.sleep(0.2)
    assert victim.grown() < 40 * MIB
    for client in clients:
        client.close()


def test_a_thousand_connections_come_and_go(victim: Victim) -> None:
    for _ in range(2):
        clients = [victim.connect() for _ in range(1_000)]
        for number, client in enumerate(clients):
            if number % 2:
                client.sendall(framed(header(18, 0)))
        victim.witness.must_be_served()
        for client in clients:
            client.close()
    descriptors = victim._process.num_fds
    wait_until(lambda: descriptors() < 200, 20, "their descriptors are closed")
    assert victim.grown() < 100 * MIB


def test_a_client_that_never_reads_while_it_fetches(victim: Victim) -> None:
    """60 MB to be read from the store by each of 3,000 fetches: nobody is there to take them."""
    with RawClient(victim.port) as client:
        large = next(_names)
        create_topic(client, large)
        batch = make_batch([(None, os.urandom(900_000), 1)])
        for _ in range(60):
            assert client.produce(large, batch).error_code == 0
    victim._memory = victim._process.memory_info().rss
    wanted = FetchPartition(0, fetch_offset=0, partition_max_bytes=60 * MIB)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=60 * MIB,
        topics=[FetchTopic(large, partitions=[wanted])],
    )
    frame = request_frame(APIS[ApiKey.FETCH], NAMED_FETCH, 1, "deaf", request)
    deaf = [victim.connect() for _ in range(30)]
    for client_socket in deaf:
        client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
        client_socket.sendall(frame * 100)
    for _ in range(30):
        victim.witness.must_be_served()
        victim.grown()
    assert victim.grown() < 4 * INFLIGHT
    with RawClient(victim.port) as client:  # others get smaller replies, but get them
        assert records_in(client.fetch(large, 0, max_bytes=60 * MIB))
    for client_socket in deaf:
        client_socket.close()
    with RawClient(victim.port) as client:
        wait_until(
            lambda: len(records_in(client.fetch(large, 0, max_bytes=60 * MIB))) > 10,
            20,
            "replies are as large as ever",
        )


def test_clients_that_send_faster_than_the_store_takes(victim: Victim) -> None:
    """They are not read from any more; when the store is back everything is answered."""
    batch = memoryview(make_batch([(None, os.urandom(900_000), 1)]))
    data = [TopicProduceData(name=victim.topic, partition_data=[PartitionProduceData(0, batch)])]
    request = ProduceRequest(acks=1, timeout_ms=60_000, topic_data=data)
    victim.witness.finish()  # it would have to wait, too
    victim.broker.kill("store", 0, signal.SIGSTOP)
    clients = [RawClient(victim.port, timeout=60) for _ in range(6)]
    sent = [0] * len(clients)
    stop = threading.Event()

    def send(index: int) -> None:
        for _ in range(40):
            if stop.is_set():
                return
            clients[index].send(request, NAMED_PRODUCE)
            sent[index] += 1

    threads = [threading.Thread(target=send, args=(index,)) for index in range(len(clients))]
    try:
        for thread in threads:
            thread.start()
        for _ in range(20):
            time.sleep(0.1)
            assert victim.grown() < 3 * INFLIGHT
        assert sum(sent) < 200  # held back
        with RawClient(victim.port) as other:  # what needs no store is served
            assert other.call(ApiVersionsRequest()).api_keys
    finally:
        victim.broker.kill("store", 0, signal.SIGCONT)
    stop.set()
    received = receive_all(clients, threads, sent)
    assert received == sum(sent)
    assert victim.grown() < 4 * INFLIGHT
    for raw_client in clients:
        raw_client.close()
    victim.call_witness()


def receive_all(clients: list[RawClient], threads: list[threading.Thread], sent: list[int]) -> int:
    """Every answer, all good; the senders end meanwhile."""
    received = 0
    for index, client in enumerate(clients):
        taken = 0
        while threads[index].is_alive() or taken < sent[index]:
            if taken == sent[index]:
                time.sleep(0.01)
                continue
            answer = client.receive()
            assert answer.responses[0].partition_responses[0].error_code == 0
            taken += 1
        received += taken
    return received
