"""Is a worker or a router still answering? Asked on its own socket, by the cheapest request.
And is it stopped (SIGSTOP)? That the kernel knows, however busy the machine is.

A new connection each time: one that is kept may be held back while the worker is busy, which is
not the same as hanging.
"""

import asyncio
from pathlib import Path

from broker.wire.advertised import PING


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


def is_stopped(pid: int) -> bool:
    """By a signal; False where nobody knows. Under a debugger is something else."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False  # gone, or not Linux
    return stat.rpartition(b")")[2].split()[:1] == [b"T"]  # the name before it may hold anything
