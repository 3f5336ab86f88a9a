"""A master, replicas and the sentinels that watch them, on free ports of 127.0.0.1."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from moldau.ops.serve.embedded_store import server_binary
from tests.support.brokers.running import free_ports, wait_until
from tests.support.stores.redis_server import SEARCH_PATH, RedisServer, start_redis

NAME = "main"
DOWN_AFTER_MS = 600
PATIENCE_S = 30


@dataclass
class Watched:
    """Servers under sentinels. They may be killed and started again."""

    directory: Path
    program: str | None
    password: str | None
    sentinel_password: str | None
    options: tuple[str, ...] = ()  # of every server
    servers: list[RedisServer] = field(default_factory=list)
    sentinel_ports: list[int] = field(default_factory=list)
    _sentinels: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The URL for `--redis`."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinel_ports)
        userinfo = f":{self.password}@" if self.password else ""
        query = f"?sentinel_password={self.sentinel_password}" if self.sentinel_password else ""
        return f"redis+sentinel://{userinfo}{hosts}/{NAME}/0{query}"

    @contextlib.contextmanager
    def client(self, port: int) -> Iterator[redis.Redis]:
        with redis.Redis(port=port, password=self.password, socket_timeout=5) as client:
            yield client

    def role(self, port: int) -> str | None:
        """None: it does not answer."""
        try:
            with self.client(port) as client:
                return str(client.info("replication")["role"])
        except redis.exceptions.RedisError:
            return None

    @property
    def master_port(self) -> int:
        """The master's port, as the first sentinel says that answers."""
        for port in self.sentinel_ports:
            with contextlib.suppress(redis.exceptions.RedisError), self._sentinel(port) as sentinel:
                found: Any = sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
                return int(found[1])
        raise AssertionError("no sentinel answers")

    @property
    def master(self) -> RedisServer:
        port = self.master_port
        return next(server for server in self.servers if server.port == port)

    def replicas(self) -> list[RedisServer]:
        return [server for server in self.servers if self.role(server.port) == "slave"]

    def caught_up(self) -> bool:
        """Has every replica that runs all that the master has?"""
        with self.client(
            self.master_port if self.sentinel_ports else self.servers[0].port
        ) as client:
            info = client.info("replication")
        online = [v for k, v in info.items() if k.startswith("slave") and isinstance(v, dict)]
        return bool(online) and all(
            one["state"] == "online" and one["offset"] == info["master_repl_offset"]
            for one in online
        )

    def fail_over(self) -> int:
        """A planned one, until there is another master. Sentinel demotes the former 8 s later."""
        former = self.master_port
        with self._sentinel(self.sentinel_ports[0]) as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", NAME)
        self.wait_for_another(former)
        return former

    def kill_master(self) -> int:
        """kill -9; returns its port at once."""
        master = self.master
        master.stop()
        return master.port

    def wait_for_another(self, former: int) -> None:
        """Wait until there is a master other than `former` that says so itself."""

        def is_there() -> bool:
            port = self.master_port
            return port != former and self.role(port) == "master"

        wait_until(is_there, PATIENCE_S, "another master")

    def start_again(self, port: int) -> None:
        """A server that was killed, as a replica of the present master."""
        index = next(i for i, server in enumerate(self.servers) if server.port == port)
        follow = ("--replicaof", f"127.0.0.1 {self.master_port}")
        self.servers[index] = self._start(index, *follow, port=port)

    def wait_for_replica(self) -> None:
        wait_until(self.caught_up, PATIENCE_S, "a replica that is caught up")

    # --- starting and stopping ---

    def start(self, replicas: int, sentinels: int) -> None:
        self.servers.append(self._start(0))
        first = self.servers[0].port
        for index in range(1, replicas + 1):
            self.servers.append(self._start(index, "--replicaof", f"127.0.0.1 {first}"))
        if replicas:
            self.wait_for_replica()
        self.sentinel_ports = [free_ports(1) for _ in range(sentinels)]
        for port in self.sentinel_ports:
            self._start_sentinel(port, first, quorum=sentinels // 2 + 1)
        for port in self.sentinel_ports:
            wait_until(lambda p=port: self._knows(p, replicas, sentinels), PATIENCE_S, "sentinels")  # type: ignore[misc]

    def _start(self, index: int, *options: str, port: int | None = None) -> RedisServer:
        secret = ("--requirepass", self.password, "--masterauth", self.password)
        options += ("--repl-diskless-sync-delay", "0", "--appendonly", "yes", *self.options)
        options += secret if self.password else ()  # type: ignore[operator]
        place = self.directory / f"server-{index}"
        return start_redis(place, *options, program=self.program, port=port)

    def _start_sentinel(self, port: int, master: int, quorum: int) -> None:
        place = self.directory / f"sentinel-{port}"
        place.mkdir()
        lines = [
            f"port {port}",
            "bind 127.0.0.1",
            f"dir {place}",
            f"logfile {place / 'log'}",
            f"sentinel monitor {NAME} 127.0.0.1 {master} {quorum}",
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {NAME} 5000",
        ]
        if self.password:
            lines.append(f"sentinel auth-pass {NAME} {self.password}")
        if self.sentinel_password:
            lines.append(f"requirepass {self.sentinel_password}")
        conf = place / "sentinel.conf"
        conf.write_text("\n".join(lines) + "\n")
        program = self.program or shutil.which("redis-server", path=SEARCH_PATH)
        words = [program or str(server_binary()), str(conf), "--sentinel"]
        self._sentinels.append(
            subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        )

    def _knows(self, port: int, replicas: int, sentinels: int) -> bool:
        try:
            with self._sentinel(port) as sentinel:
                (state,) = sentinel.sentinel_masters().values()
        except redis.exceptions.RedisError:
            return False
        return (state["num-slaves"], state["num-other-sentinels"]) == (replicas, sentinels - 1)

    @contextlib.contextmanager
    def _sentinel(self, port: int) -> Iterator[Any]:
        with redis.Redis(port=port, password=self.sentinel_password, socket_timeout=5) as client:
            yield client

    def stop_sentinel(self, index: int) -> None:
        self._sentinels[index].kill()
        self._sentinels[index].wait()

    def stop(self) -> None:
        for index in range(len(self._sentinels)):
            self.stop_sentinel(index)
        for server in self.servers:
            server.stop()


@contextlib.contextmanager
def watched_servers(
    directory: Path,
    *,
    replicas: int = 1,
    sentinels: int = 1,
    program: str | None = None,
    password: str | None = None,
    sentinel_password: str | None = None,
    options: tuple[str, ...] = (),
) -> Iterator[Watched]:
    watched = Watched(directory, program, password, sentinel_password, options)
    try:
        watched.start(replicas, sentinels)
        yield watched
    finally:
        watched.stop()
