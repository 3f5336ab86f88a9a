"""Which workers are up: those that answer."""

import asyncio
import socket
from pathlib import Path

from moldau.broker.wire.advertised import PING
from moldau.router.workers import Workers


async def test_a_worker_is_up_when_it_answers_not_when_it_can_be_connected_to(
    short_tmp_path: Path,
) -> None:
    """Its socket is open while it is restarted."""
    path = str(short_tmp_path / "w.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        listening.setblocking(False)
        workers = Workers([path])
        watching = asyncio.ensure_future(workers.watch(0))
        loop = asyncio.get_running_loop()
        try:
            for _ in range(2):  # a worker, and its successor
                await asyncio.sleep(0.1)
                assert workers.is_up == [False]
                assert workers.choose(0) is None
                held, _ = await loop.sock_accept(listening)
                with held:
                    assert await loop.sock_recv(held, 100) == PING
                    assert workers.is_up == [False]
                    await loop.sock_sendall(held, b"\0\0\0\4\0\0\0\0")
                    await workers.until_up(10)
                    assert workers.is_up == [True]
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
