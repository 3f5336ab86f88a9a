"""Which unix socket a tool asks on the broker's own machine."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from moldau.ops.client import BOOTSTRAP_ID, Node
from moldau.ops.local_broker import find_local_broker
from moldau.ops.serve.runtime import router_socket, worker_socket

PORT = 9092


@pytest.fixture
def runtime(short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOLDAU_RUNTIME_DIR", str(short_tmp_path))
    return short_tmp_path


def listen(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen()
    return made


def test_workers_are_asked_at_their_own_sockets(runtime: Path) -> None:
    router = router_socket(runtime, PORT, 0)
    workers = [worker_socket(runtime, PORT, index) for index in (0, 1)]
    with ExitStack() as stack:
        for path in (router, *workers):
            stack.enter_context(listen(path))
        found = find_local_broker(PORT)
        assert found is not None
        assert found(Node(BOOTSTRAP_ID, "127.0.0.1", PORT)) == str(router)
        assert found(Node(0, "127.0.0.1", PORT + 1)) == str(workers[0])
        assert found(Node(1, "127.0.0.1", PORT + 2)) == str(workers[1])
        # --advertise router, and a worker of another number than are here
        assert found(Node(0, "broker.example.com", PORT)) == str(router)
        assert found(Node(7, "127.0.0.1", PORT + 8)) == str(router)
        assert find_local_broker(PORT + 1) is None


def test_a_router_that_accepts_is_found(runtime: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead, listen(router_socket(runtime, PORT, 1)):
        dead.bind(str(router_socket(runtime, PORT, 0)))
        found = find_local_broker(PORT)
        assert found is not None
        assert found(Node(0, "h", PORT)) == str(router_socket(runtime, PORT, 1))


def test_sockets_that_a_killed_broker_left_behind_are_no_broker(runtime: Path) -> None:
    with listen(router_socket(runtime, PORT, 0)):
        pass
    assert router_socket(runtime, PORT, 0).exists()
    assert find_local_broker(PORT) is None
