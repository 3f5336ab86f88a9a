"""The control socket: commands ask a running supervisor for facts and actions of its own.

One request line in (`status`, `mark-backup`), one JSON document out, end of connection. Only the
user that runs `serve` can reach it: it lives in the runtime directory.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

REQUEST_LIMIT = 4096
CLIENT_PATIENCE_S = 5.0
ANSWER_PATIENCE_S = 60.0  # for a request that does something

# What answers a request other than `status`.
Requests = Mapping[str, Callable[[], Awaitable[dict[str, Any]]]]


class NotRunningError(RuntimeError):
    """No supervisor answers on the control socket."""


async def serve_control(
    path: Path, status: Callable[[], dict[str, Any]], requests: Requests | None = None
) -> asyncio.Server:
    """Answer requests at `path`. The caller holds the port's lock, so a file there is stale."""
    remove_socket(path)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The client may disconnect at any time; that is not an error.
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            try:
                async with asyncio.timeout(CLIENT_PATIENCE_S):
                    request = (await reader.readline()).strip().decode("utf-8", "replace")
                action = (requests or {}).get(request)
                if action is not None:
                    async with asyncio.timeout(ANSWER_PATIENCE_S):
                        reply = await action()
                elif request == "status":
                    reply = status()
                else:
                    reply = {"error": f"unknown request {request!r}"}
                async with asyncio.timeout(CLIENT_PATIENCE_S):
                    writer.write(msgspec.json.encode(reply) + b"\n")
                    await writer.drain()
            finally:
                writer.close()

    return await asyncio.start_unix_server(answer, path=path, limit=REQUEST_LIMIT)


def remove_socket(path: Path) -> None:
    path.unlink(missing_ok=True)


def ask_status(path: Path) -> dict[str, Any]:
    """The status of the supervisor at `path`. Raises NotRunningError."""
    return ask_control(path, "status", CLIENT_PATIENCE_S)


def ask_control(path: Path, request: str, patience_s: float = ANSWER_PATIENCE_S) -> dict[str, Any]:
    """The answer of the supervisor at `path`. Raises NotRunningError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(patience_s)
        try:
            connection.connect(str(path))
            connection.sendall(request.encode() + b"\n")
            reply = b""
            while chunk := connection.recv(65536):
                reply += chunk
        except OSError as error:
            raise NotRunningError(str(error)) from None
    document = msgspec.json.decode(reply)
    if not isinstance(document, dict):
        raise NotRunningError(f"no answer in the reply {reply!r}")
    return document
