"""Is a worker or a router hanging? Then it is killed, and the supervisor restarts it.

- It does not answer: two pings in a row were missed, each with the cheapest request there is, on
  its own socket. Each ping is a new connection: an open one may be held back while the worker is
  busy, which is not the same as hanging.
- It is stopped (SIGSTOP): the kernel knows, however busy the machine is, so 3 s are enough.
"""

import asyncio
import logging
from pathlib import Path

from moldau.broker.wire.advertised import PING
from moldau.ops.serve.children import Child, State

logger = logging.getLogger("moldau.supervisor")

PING_INTERVAL_S = 2.0
PING_PATIENCE_S = 5.0
PING_MISSES = 2
LOOK_INTERVAL_S = 0.5
STOPPED_LOOKS = 6


async def kill_when_silent(child: Child) -> None:
    """Watch a child with a ping address until cancelled."""
    assert child.spec.ping is not None
    misses = 0
    while True:
        await asyncio.sleep(PING_INTERVAL_S)
        pid = child.pid
        if child.state is not State.RUNNING or await answers(child.spec.ping, PING_PATIENCE_S):
            misses = 0
            continue
        if child.state is not State.RUNNING or child.pid != pid:
            misses = 0  # it exited meanwhile; that is not a hang
            continue
        misses += 1
        logger.warning("%s does not answer (%d of %d)", child.spec.name, misses, PING_MISSES)
        if misses >= PING_MISSES:
            logger.error("%s hangs: killed, to be restarted", child.spec.name)
            child.kill()
            misses = 0


async def kill_when_stopped(child: Child) -> None:
    """Watch a child until cancelled."""
    looks = 0
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        is_running = child.state is State.RUNNING and child.pid is not None
        looks = looks + 1 if is_running and is_stopped(child.pid or 0) else 0
        if looks >= STOPPED_LOOKS:
            logger.error(
                "%s hangs: killed, to be restarted (it was stopped by a signal)", child.spec.name
            )
            child.kill()
            looks = 0


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
    """True if a signal stopped it, and not a debugger; False where that is unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False  # gone, or not Linux
    return stat.rpartition(b")")[2].split()[:1] == [b"T"]  # the name before it may hold anything
