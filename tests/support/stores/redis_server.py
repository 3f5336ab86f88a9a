"""An external Redis for tests: Debian's `redis-server` where it is installed, else Valkey's.

Redis 7.0 is the oldest server Moldau promises to work with, so it is preferred.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from moldau.ops.serve.embedded_store import server_binary
from tests.support.brokers.running import free_ports

# ops/test puts it into the environment where the system has none under that name.
SEARCH_PATH = f"{sys.prefix}/bin:{os.environ.get('PATH', os.defpath)}"


@dataclass
class RedisServer:
    """A server on a TCP port of 127.0.0.1, without persistence."""

    url: str
    port: int
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def start_redis(
    directory: Path, *options: str, program: str | None = None, port: int | None = None
) -> RedisServer:
    """Start one and wait until it answers; `options` go on its command line.

    With `port`, again on that one: `directory` may hold what it is to begin with (`dump.rdb`).
    """
    directory.mkdir(parents=True, exist_ok=True)
    program = program or shutil.which("redis-server", path=SEARCH_PATH) or str(server_binary())
    for _ in range(5):
        chosen = port or free_ports(1)
        words = [program, "--port", str(chosen), "--bind", "127.0.0.1", "--save", ""]
        words += ["--dir", str(directory), "--logfile", str(directory / "log"), *options]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        server = RedisServer(f"redis://127.0.0.1:{chosen}", chosen, process)
        if _answers(server):
            return server
    raise AssertionError((directory / "log").read_text())


@contextlib.contextmanager
def running_redis(
    directory: Path, *options: str, program: str | None = None
) -> Iterator[RedisServer]:
    """The same for as long as a fixture or a test needs it."""
    server = start_redis(directory, *options, program=program)
    try:
        yield server
    finally:
        server.stop()


def _answers(server: RedisServer) -> bool:
    deadline = time.monotonic() + 60
    while server.process.poll() is None:
        try:
            with redis.from_url(server.url) as client:
                client.ping()
        except redis.exceptions.AuthenticationError:
            return True
        except redis.exceptions.ConnectionError:
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.02)
        else:
            return True
    return False  # another process took the port
