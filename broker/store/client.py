"""A redis-py client for the URL of a store, for processes that may block."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import redis
from redis.asyncio.connection import parse_url
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from moldau.broker.store.store_url import StoreUrl

TIMEOUT_S = 5.0
SENTINEL_TIMEOUT_S = 1.0
ASK_EVERY_S = 0.5


def connect(url: str) -> redis.Redis:
    """A client that connects with its first command; with Sentinel it follows the master.

    Raises ValueError for a URL that cannot be read.
    """
    known = StoreUrl(url)
    if known.sentinels:
        return _Sentinels(known).master()
    return redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)


class _Sentinels(Sentinel):
    """The sentinels of a URL. They may have no password although the servers have one."""

    def __init__(self, url: StoreUrl) -> None:
        self._name = url.master_name
        options: dict[str, Any] = dict(parse_url(url.server_url))
        for key in ("host", "port", "connection_class"):
            options.pop(key, None)
        options |= {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        asking: dict[str, Any] = {
            "socket_timeout": SENTINEL_TIMEOUT_S,
            "socket_connect_timeout": SENTINEL_TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),  # there are others to ask
        }
        if url.uses_tls:
            options["ssl"] = True
            asking |= {key: value for key, value in options.items() if key.startswith("ssl")}
        own = url.sentinel_credentials
        known = {**asking, "username": own.username, "password": own.password}
        super().__init__(url.sentinels, sentinel_kwargs=known, **options)  # type: ignore[no-untyped-call]
        self._without_password: Sentinel | None = None
        if own.password is not None:
            self._without_password = Sentinel(url.sentinels, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]

    def master(self) -> redis.Redis:
        client: redis.Redis = self.master_for(self._name, connection_pool_class=_Pool)  # type: ignore[no-untyped-call]
        return client

    def discover_master(self, service_name: str) -> Any:
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except MasterNotFoundError:
            if self._without_password is not None:
                with contextlib.suppress(MasterNotFoundError):  # the first reason is the better one
                    return self._without_password.discover_master(service_name)  # type: ignore[no-untyped-call]
            raise

    def close(self) -> None:
        super().close()
        if self._without_password is not None:
            self._without_password.close()


class _Pool(SentinelConnectionPool):
    """Asks the sentinels again from time to time: a former master still answers for a while.

    Closing the client closes the connections to sentinels as well.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]
        self._asked_at = time.monotonic()

    def get_connection(self, *arguments: Any, **options: Any) -> Any:
        now = time.monotonic()
        if now - self._asked_at >= ASK_EVERY_S:
            self._asked_at = now
            with contextlib.suppress(MasterNotFoundError):  # the connection may still be good
                self.get_master_address()  # type: ignore[no-untyped-call]  # drops idle connections to other servers
        return super().get_connection(*arguments, **options)

    def disconnect(self, inuse_connections: bool = True) -> None:
        super().disconnect(inuse_connections)
        if inuse_connections:
            self.sentinel_manager.close()
