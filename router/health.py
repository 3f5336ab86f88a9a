"""Is a worker or a router still answering? Asked on its own socket, by the cheapest request.

A new connection each time: one that is kept may be held back while the worker is busy, which is
not the same as hanging.
"""

import asyncio
import struct

# ApiVersions v0, correlation id 0, no client id: every worker answers it without the store.
PING = struct.pack(">ihhih", 10, 18, 0, 0, -1)


async def answers(address: str | tuple[str, int], patience_s: float) -> bool:
    """Whether a reply to a ping begins to arrive within `patience_s`.

    The address is the path of a unix socket, or a host and a port.
    """
    try:
        async with asyncio.timeout(patience_s):
            if isinstance(address, str):
                reader, writer = await asyncio.open_unix_connection(address)
            else:
                reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(PING)
                await reader.readexactly(8)
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError):
        return False
    return True
