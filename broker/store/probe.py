"""Asks a server whether it is ready, without a client library: the supervisor starts without
one."""

from __future__ import annotations

import asyncio

from moldau.broker.store import format as store_format
from moldau.broker.store import keys

TIMEOUT_S = 1.0


async def is_ready(unix_socket: str) -> bool:
    """Does the server answer, and has it loaded its data?"""
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


async def is_up_to_date(unix_socket: str) -> bool:
    """Does the store have the current format, or is it empty? False if it does not answer."""
    current = store_format.CURRENT_VALUE
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(unix_socket)
            try:
                writer.write(b"EXISTS %b\r\nGET %b\r\n" % (keys.CLUSTER, keys.FORMAT))
                if await reader.readline() == b":0\r\n":
                    return True  # the first worker sets the format
                expected = b"$%d\r\n%b\r\n" % (len(current), current)
                return await reader.readexactly(len(expected)) == expected
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
