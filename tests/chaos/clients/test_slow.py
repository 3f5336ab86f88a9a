"""Clients that stop halfway, never read or send too fast cost a worker a bounded amount of memory.

A witness, a client that behaves, is served by the same worker all the while.
"""

import os
import signal
import socket
import struct
import threading
import time

from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import request_frame
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.chaos.clients.victim import Victim, framed, header, topic_names
from tests.support.brokers.running import wait_until
from tests.support.raw.calls import create_topic
from tests.support.raw.client import NAMED_FETCH, NAMED_PRODUCE, RawClient, make_batch, records_in

MIB = 1 << 20
LIMIT = 100 * MIB
INFLIGHT = 64 * MIB


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
    wait_until(lambda: descriptors() < 200, 30, "their descriptors are closed")
    assert victim.grown() < 100 * MIB


def test_a_client_that_never_reads_while_it_fetches(victim: Victim) -> None:
    """60 MB to be read from the store by each of 3,000 fetches, and never taken."""
    with RawClient(victim.port) as client:
        large = next(topic_names)
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
            30,
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
            assert other.call(ApiVersionsRequest("tests", "1")).api_keys
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
