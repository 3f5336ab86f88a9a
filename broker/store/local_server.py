"""The embedded server as the supervisor sees it: whether its file is written, and its memory limit.

It uses one unix connection and no client library, like `probe.py`: the supervisor starts without
one.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from moldau.broker.errors import StoreFault, StoreUnavailable

TIMEOUT_S = 1.0
# The memory limit of a server whose disk is nearly full. It refuses writes from the next command
# on, and commands that free memory still work (`noeviction`).
NOTHING_MORE = 1


def disk_limit(limit: int) -> int:
    """The limit to set because of the disk: such limits are odd, an operator's are even."""
    return limit | 1


def operators_limit(limit: int) -> int:
    return limit & ~1


def is_disk_limit(limit: int) -> bool:
    return bool(limit & 1)


class ServerState(NamedTuple):
    """What INFO says about writes and memory."""

    is_written: bool  # the last write succeeded, so all that was acknowledged before is in the file
    unwritten_bytes: int  # in memory: of this turn of the server, or also of writes that failed
    used_memory: int


class LocalServer:
    """A connection. Commands raise StoreFault; the next one reconnects."""

    def __init__(self, unix_socket: str) -> None:
        self._path = unix_socket
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def state(self) -> ServerState:
        text = (await self._ask(b"INFO persistence memory")).decode("utf-8", "replace")
        found = dict(line.partition(":")[::2] for line in text.splitlines())
        return ServerState(
            is_written=found.get("aof_last_write_status", "ok") == "ok",
            unwritten_bytes=int(found.get("aof_buffer_length", 0)),
            used_memory=int(found.get("used_memory", 0)),
        )

    async def limit_memory(self, limit: int) -> None:
        await self._ask(b"CONFIG SET maxmemory %d" % limit)

    def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def _ask(self, line: bytes) -> bytes:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if self._connection is None:
                    self._connection = await asyncio.open_unix_connection(self._path)
                reader, writer = self._connection
                writer.write(line + b"\r\n")
                return await _reply(reader)
        except (OSError, TimeoutError, EOFError) as fault:
            self.close()
            raise StoreUnavailable(f"{self._path}: {fault or 'no reply in time'}") from None
        except BaseException:
            self.close()  # its reply would be taken for that of the next command
            raise


async def _reply(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readline()
    kind, rest = head[:1], head[1:].strip()
    if kind == b"$":
        return (await reader.readexactly(int(rest) + 2))[:-2]
    if kind == b"+":
        return rest
    if kind == b"-":
        raise StoreFault(rest.decode("utf-8", "replace"))
    raise EOFError("the connection was closed")
