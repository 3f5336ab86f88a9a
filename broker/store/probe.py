"""Whether a server answers, asked without a client library: the supervisor starts without one."""

from __future__ import annotations

import asyncio

TIMEOUT_S = 1.0


async def is_ready(unix_socket: str) -> bool:
    """Whether the server answers, and has loaded its data."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(unix_socket)
            try:
                writer.write(b"PING\r\n")
                return await reader.readline() == b"+PONG\r\n"  # or -LOADING
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
