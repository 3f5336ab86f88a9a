"""A store that can lose what it acknowledged: a real server, its append-only file, its replica.

    with LossyStore(directory, program) as store:
        mark = store.size()              # of the append-only file
        store.kill()                     # -9
        store.cut_to(mark)
        store.start()                    # on the same port

`appendfsync always`: every write is in the file before its reply, so `kill -9` loses nothing, and
what is lost is what a test takes away. `StorePair` is a master and a replica behind one address.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import redis

from moldau.ops.serve.embedded_store import server_binary
from tests.support.brokers.running import free_ports, wait_until
from tests.support.stores.proxy import ProxyThread
from tests.support.stores.redis_server import SEARCH_PATH

PATIENCE_S = 30.0
OPTIONS = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "always",
    "aof-load-truncated": "yes",
    "auto-aof-rewrite-percentage": "0",
    "repl-diskless-sync-delay": "0",
}


def programs() -> dict[str, str]:
    """The servers there are on this machine: Valkey always, Redis 7.0 where it is installed."""
    found = {"valkey": str(server_binary())}
    installed = shutil.which("redis-server", path=SEARCH_PATH)
    if installed is not None:
        found["redis"] = installed
    return found


def newest_file(directory: Path) -> Path:
    """The part of the append-only file that is written to."""
    manifest = next(directory.glob("appendonlydir/*.manifest")).read_text()
    (name,) = re.findall(r"^file (\S+) seq \d+ type i", manifest, re.MULTILINE)[-1:]
    return directory / "appendonlydir" / str(name)


class LossyStore:
    """One server; it keeps its port and its directory when it is started again."""

    def __init__(self, directory: Path, program: str) -> None:
        self._directory = directory
        self._program = program
        self.port = free_ports(1)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def client(self) -> Any:
        return redis.Redis(port=self.port)

    def start(self, *options: str) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        fixed = {"port": str(self.port), "dir": str(self._directory), **OPTIONS}
        words = [word for name, value in fixed.items() for word in (f"--{name}", value)]
        with (self._directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._program, *words, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until(self._answers, PATIENCE_S, f"the store answers: {self.log()[-2000:]}")

    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()[-2000:]
        with self.client() as client, contextlib.suppress(redis.exceptions.RedisError):
            return bool(client.ping())
        return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    # --- its file ---

    def size(self) -> int:
        """The size of the file that is written to, for `cut_to`."""
        return newest_file(self._directory).stat().st_size

    def cut_to(self, size: int) -> None:
        os.truncate(newest_file(self._directory), size)

    def copy(self) -> Path:
        """Its files as they are now, for `put_back`."""
        target = self._directory.with_name(f"{self._directory.name}-{time.monotonic_ns()}")
        shutil.copytree(self._directory / "appendonlydir", target)
        return target

    def put_back(self, copy: Path) -> None:
        self.empty()
        shutil.copytree(copy, self._directory / "appendonlydir")

    def empty(self) -> None:
        shutil.rmtree(self._directory / "appendonlydir")


class StorePair:
    """A master and its replica; clients see one address, which leads to the master."""

    def __init__(self, directory: Path, program: str) -> None:
        self.master = LossyStore(directory / "one", program)
        self.replica = LossyStore(directory / "other", program)
        self._proxy: ProxyThread | None = None

    @property
    def proxy(self) -> ProxyThread:
        assert self._proxy is not None
        return self._proxy

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.proxy.port}"

    def __enter__(self) -> Self:
        self.master.start()
        self.replica.start("--replicaof", "127.0.0.1", str(self.master.port))
        self._proxy = ProxyThread(self.master.port, lambda link: None)
        self._proxy.__enter__()
        self.wait_in_sync()
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.__exit__()
        self.master.kill()
        self.replica.kill()

    def wait_in_sync(self) -> None:
        """Wait until the replica is online and has everything written before this call."""

        def is_online() -> bool:
            with self.master.client() as client:
                return "slave0" in (facts := client.info("replication")) and (
                    facts["slave0"]["state"] == "online"
                )

        wait_until(is_online, PATIENCE_S, "the replica is online")
        with self.master.client() as client:
            client.set("test:barrier", 1)
            assert client.wait(1, int(PATIENCE_S * 1000)) == 1, "the replica lags"

    def stop_replica(self, *, unlink: bool) -> None:
        """SIGSTOP. Linked, the master takes it for online; unlinked, the master goes on alone."""
        self.wait_in_sync()
        self.replica.signal(signal.SIGSTOP)
        if unlink:
            with self.master.client() as client:
                client.client_kill_filter(_type="replica")

    def kill_master(self) -> None:
        self.master.kill()
        self.proxy.refuse()

    def promote(self) -> None:
        """The replica, stopped or not, becomes what the address leads to."""
        self.replica.signal(signal.SIGCONT)
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")
        self.master, self.replica = self.replica, self.master
        self.proxy.point_at(self.master.port)

    def rejoin(self) -> None:
        """The former master comes back as the replica."""
        self.replica.start("--replicaof", "127.0.0.1", str(self.master.port))
        self.wait_in_sync()

    def fail_over(self, *, cut: bool) -> None:
        """Planned: the two change places and nothing is lost. Uncut connections stay with the
        former master, which is read-only now."""
        with self.master.client() as client:
            client.execute_command("FAILOVER", "TO", "127.0.0.1", self.replica.port)

        def is_master() -> bool:
            with self.replica.client() as client:
                return bool(client.info("replication")["role"] == "master")

        wait_until(is_master, PATIENCE_S, "the replica has taken over")
        self.master, self.replica = self.replica, self.master
        self.proxy.point_at(self.master.port, cut=cut)
