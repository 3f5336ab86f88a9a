"""Is a worker still answering? Asked over its unix socket with the cheapest request Kafka has."""

import asyncio
import struct

# ApiVersions v0, correlation id 0, no client id: every worker answers it without the store.
_PING = struct.pack(">ihhih", 10, 18, 0, 0, -1)


async def answers(socket_path: str, patience_s: float) -> bool:
    """Whether a reply to a ping begins to arrive within `patience_s`."""
    try:
        async with asyncio.timeout(patience_s):
            reader, writer = await asyncio.open_unix_connection(socket_path)
            try:
                writer.write(_PING)
                await reader.readexactly(8)
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError):
        return False
    return True
