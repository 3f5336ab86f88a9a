"""The worker that a test does its worst to, and a witness: a client that is served meanwhile."""

import contextlib
import socket
import struct
import threading
import time
from itertools import count

import psutil  # type: ignore[import-untyped]

from tests.support.brokers.running import Broker, wait_until
from tests.support.proofs.hammer import worker_ports
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient, make_batch, records_in

topic_names = (f"garbage-{number}" for number in count())


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
        wait_until(lambda: self.served > before + 3 or self._fault is not None, 30, "served")
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
            self.topic = next(topic_names)
            create_topic(client, self.topic)
            self._witnessed = next(topic_names)
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
        wait_until(lambda: why in self.said(), 30, f"the log says {why!r}: {self.said()[-2000:]}")

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


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def header(key: int, version: int, *, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", key, version, 1, -1) + (b"\0" if flexible else b"")
