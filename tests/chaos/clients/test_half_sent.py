"""Requests that are begun and not ended: bounded memory, in workers and routers, and those who end
theirs are served."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from tests.chaos.clients.half_sent import DESCRIBE_GROUPS, MIB, HalfSent, answers, produce_request
from tests.chaos.clients.victim import Victim, topic_names
from tests.support.brokers.certificates import Certificates
from tests.support.brokers.running import Broker, running_broker, wait_until
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient, make_batch
from tests.support.raw.quotas import Anyone

LIMIT = 100 * MIB  # of a request
INFLIGHT = 64 * MIB
KEPT = 4 * MIB  # the largest request that a router keeps until it is whole
# The budget, one frame of the largest size, and the copy it is made of when it grows.
MOST = INFLIGHT + LIMIT + LIMIT // 2 + 30 * MIB


def test_half_sent_requests_give_way_to_whole_ones(victim: Victim) -> None:
    with contextlib.closing(HalfSent(victim.connect, LIMIT, 12 * MIB)) as half:
        half.begin(60)
        half.send_all(victim.grown)
        victim.witness.must_be_served()
        serve_honest_clients(victim)
        victim.must_say("memory for requests that have not arrived whole is short")
        assert victim.said().count("have not arrived whole") <= 20
        wait_until(lambda: half.are_closed() > 0, 30, "some of the others are closed")


def serve_honest_clients(victim: Victim) -> None:
    # Too large to be received at once: they need memory that the others hold.
    honest = [victim.connect() for _ in range(20)]
    for client in honest:
        client.settimeout(60)
    request = produce_request(victim.topic, 900_000)
    sending = [
        threading.Thread(target=client.sendall, args=(request,), daemon=True) for client in honest
    ]
    for thread in sending:
        thread.start()
    assert all(answers(client) for client in honest)
    victim.witness.must_be_served()
    assert victim.grown() < MOST


def test_a_slow_client_is_served_while_there_is_room(victim: Victim) -> None:
    request = produce_request(victim.topic, 900_000)
    with victim.connect() as slow:
        slow.settimeout(60)
        for at in range(0, len(request), 30_000):
            slow.sendall(request[at : at + 30_000])
            time.sleep(0.2)  # for six seconds: longer than those in need have patience
        assert answers(slow)


def test_routers_keep_half_sent_requests_within_bounds(broker: Broker) -> None:
    """Requests of which a router has to know all before it can pass them on."""
    router = psutil.Process(broker.pids("router")[0])
    before = router.memory_info().rss

    def grown() -> int:
        return int(router.memory_info().rss - before)

    peak = 0

    def look() -> None:
        nonlocal peak
        peak = max(peak, grown())

    half = HalfSent(
        lambda: socket.create_connection(("127.0.0.1", broker.port), 20), KEPT, KEPT - 1000
    )
    half.begin(150, DESCRIBE_GROUPS, 0)
    half.send_all(look)
    with RawClient(broker.port, timeout=60) as client:
        topic = next(topic_names)
        create_topic(client, topic)
        assert client.produce(topic, make_batch([(None, b"routed", 1)])).error_code == 0
    look()
    wait_until(lambda: half.are_closed() > 0, 60, "some give way")
    assert peak < 3 * INFLIGHT  # what is kept is copied when it is looked at
    assert router.pid in broker.pids("router")
    half.close()


# --- all at once, for longer ---


@pytest.mark.slow
@pytest.mark.parametrize("way", ["worker", "router", "worker-tls", "router-tls"])
def test_a_storm_of_half_sent_requests(certificates: Certificates, way: str) -> None:
    """1,000 connections with half a megabyte each, some that send a byte now and then, and
    producers that are served all the while."""
    is_tls, is_worker = way.endswith("tls"), way.startswith("worker")
    options: dict[str, Any] = {}
    if is_tls:
        keys = {"ssl.keystore.location": certificates.server}
        options = {"listeners": ["SSL"], "broker": keys}
    with running_broker(
        workers=1, inflight_bytes="64mb", tail_cache_bytes="4mb", **options
    ) as broker:
        port = broker.port + is_worker
        context = ssl.create_default_context(cafile=str(certificates.ca))

        def connect() -> socket.socket:
            made = socket.create_connection(("127.0.0.1", port), 60)
            return context.wrap_socket(made, server_hostname="localhost") if is_tls else made

        with Anyone(broker, is_operator=True) as operator:
            create_topic(operator, "storm")
        processes = [psutil.Process(broker.pids(role)[0]) for role in ("worker", "router")]
        before = [process.memory_info().rss for process in processes]
        request = produce_request("storm", 900_000)
        served, stop = [0] * 4, threading.Event()

        def produce(number: int) -> None:
            client = connect()
            while not stop.is_set():
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    client.sendall(request)
                    if answers(client):
                        served[number] += 1
                        continue
                with contextlib.suppress(OSError):  # the broker is stopped at the end
                    client = connect()  # as producers do

        producers = [
            threading.Thread(target=produce, args=(number,), daemon=True) for number in range(4)
        ]
        for thread in producers:
            thread.start()
        peaks = [0, 0]

        def look() -> None:
            for index, process in enumerate(processes):
                peaks[index] = max(peaks[index], process.memory_info().rss - before[index])

        half = HalfSent(connect, MIB, MIB // 2)
        half.begin(1000)
        half.send_all(look, 15)
        for _ in range(20):
            half.send(1)
            look()
            time.sleep(0.5)
        had = list(served)
        wait_until(
            lambda: all(now > once + 3 for now, once in zip(served, had, strict=True)),
            60,
            f"every producer is served: {had}, {served}",
        )
        stop.set()
        assert [broker.pids(role)[0] for role in ("worker", "router")] == [
            process.pid for process in processes
        ]
        # OpenSSL and uvloop keep up to 0.5 MB for a connection that has received that much.
        buffers = (500 if is_tls else 60) * MIB
        assert max(peaks) < 2 * INFLIGHT + buffers, peaks
        half.close()
