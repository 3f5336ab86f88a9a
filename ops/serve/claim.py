"""One broker per Redis database: two would each think that they own every group.

A store of its own is locked by its data directory. An external one is claimed with a key that says
who serves it and expires when nobody renews it, so that a crash keeps nobody out for long; on the
same host it is known at once that the holder is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time

import msgspec
import redis

from ops.serve.supervisor import BootError

log = logging.getLogger("moldau.supervisor")

KEY = "moldau:serving"
EXPIRES_MS = 6_000
RENEW_EVERY_S = 2.0
LOOK_EVERY_S = 0.25

_RENEW = (
    "local holder = redis.call('GET', KEYS[1]) "
    "if not holder or holder == ARGV[1] then "
    "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return false end return holder"
)
_RELEASE = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)


class Holder(msgspec.Struct, frozen=True):
    host: str
    pid: int
    port: int
    since: float

    @property
    def is_gone(self) -> bool:
        """Certainly: of another host's processes nothing is known."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


class Claim:
    """Take it before anything is started, keep it while serving, give it back at the end."""

    def __init__(self, url: str, port: int) -> None:
        self._redis = redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)
        self._mine = msgspec.json.encode(
            Holder(socket.gethostname(), os.getpid(), port, time.time())
        )

    def take(self) -> None:
        """Raises BootError when somebody else keeps it."""
        patient_until = time.monotonic() + EXPIRES_MS / 1000 + 1
        told = False
        while (holder := self._renew()) is not None:
            if holder.is_gone:
                self._redis.delete(KEY)
                continue
            if time.monotonic() > patient_until:
                raise BootError(
                    f"this Redis database is served already, by process {holder.pid} on "
                    f"{holder.host}, port {holder.port}: stop that one, or use a database of "
                    "your own (redis://host:port/1)"
                )
            if not told:
                told = True
                log.warning("waiting: process %d on %s may be gone", holder.pid, holder.host)
            time.sleep(LOOK_EVERY_S)

    def _renew(self) -> Holder | None:
        """Who has it instead of us."""
        found = self._redis.eval(_RENEW, 1, KEY, self._mine, EXPIRES_MS)
        return None if found is None else _decode(found)

    async def keep(self) -> None:
        """Until cancelled. A store that is away cannot be claimed by others either."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            try:
                holder = await asyncio.to_thread(self._renew)
            except redis.RedisError:
                continue
            except msgspec.DecodeError as fault:
                log.error("%s in the store is not ours: %s", KEY, fault)  # noqa: TRY400
                continue
            if holder is not None:
                log.critical(
                    "THIS REDIS DATABASE IS SERVED BY ANOTHER BROKER TOO: process %d on %s, "
                    "port %d; groups are split between them: stop one",
                    holder.pid,
                    holder.host,
                    holder.port,
                )

    def give_back(self) -> None:
        try:
            self._redis.eval(_RELEASE, 1, KEY, self._mine)
        except redis.RedisError as fault:
            log.warning("the store was not told that it is free: %s", fault)
        finally:
            self._redis.close()


def _decode(data: bytes) -> Holder:
    return msgspec.json.decode(data, type=Holder)
