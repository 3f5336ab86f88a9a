"""Connections of benchmarks on the event loop, with the TLS and the login that a broker wants.

What it wants is set once for a run (`using`), not passed through every benchmark: a process
measures one broker at a time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, TypeVar

from moldau.loadtest.bench.harness.request_connection import RequestConnection
from moldau.ops.client import PLAINTEXT, Security
from moldau.ops.client.sasl import VERSIONS, authentication
from moldau.ops.client.security import Sasl
from moldau.ops.client.tls import client_context

P = TypeVar("P", bound=asyncio.Protocol)


class _InUse:
    security = PLAINTEXT
    context: ssl.SSLContext | None = None
    plain: ClassVar[set[tuple[str, int]]] = set()


def security_in_use() -> Security:
    return _InUse.security


@contextmanager
def using(security: Security) -> Iterator[None]:
    """Secure every connection to an address meanwhile. Raises InvalidSecurity."""
    before = _InUse.security, _InUse.context
    context = None if security.tls is None else client_context(security.tls)
    _InUse.security, _InUse.context = security, context
    try:
        yield
    finally:
        _InUse.security, _InUse.context = before


def wants_nothing(address: tuple[str, int]) -> tuple[str, int]:
    """A baseline, not the broker: to be asked without TLS and login."""
    _InUse.plain.add(address)
    return address


async def open_connection(make: Callable[[], P], address: str | tuple[str, int]) -> P:
    """Connect to the broker or a baseline; a unix socket wants neither TLS nor a login."""
    loop = asyncio.get_running_loop()
    if isinstance(address, str):
        _, made = await loop.create_unix_connection(make, address)
        return made
    if address in _InUse.plain:
        _, made = await loop.create_connection(make, *address)
        return made
    sasl, context = _InUse.security.sasl, _InUse.context
    if sasl is None:
        _, made = await loop.create_connection(make, *address, ssl=context)
        return made
    transport, login = await loop.create_connection(RequestConnection, *address, ssl=context)
    await _authenticate(login, sasl)
    made = make()
    transport.set_protocol(made)
    made.connection_made(transport)
    return made


async def _authenticate(connection: RequestConnection, sasl: Sasl) -> None:
    steps = authentication(sasl)
    request = next(steps)
    while True:
        answer = await connection.call(request, VERSIONS[type(request)])
        try:
            request = steps.send(answer)
        except StopIteration:
            return
