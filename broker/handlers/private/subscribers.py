"""Routers that subscribed to a private API; notices go over the connections on which they asked."""

from __future__ import annotations

from typing import Generic, TypeVar

from moldau.broker.private.api import PrivateApi
from moldau.broker.server.call import Call
from moldau.broker.server.connection import Connection

A = TypeVar("A")


class Subscribers(Generic[A]):
    """The subscribers of one private API."""

    def __init__(self, api: PrivateApi[None, A]) -> None:
        self._api = api
        self._routers: set[Connection] = set()
        self._current: bytes | None = None

    def subscribe(self, call: Call) -> None:
        """The router gets what is kept at once, and then every notice."""
        self._routers.add(call.connection)
        call.no_reply()
        if self._current is not None:
            call.connection.push(self._current)

    def tell(self, news: A) -> None:
        self._push(self._api.answer(news))

    def keep(self, news: A) -> None:
        """Tell also those who subscribe later. Nothing is sent if it is the same as before."""
        frame = self._api.answer(news)
        if frame != self._current:
            self._current = frame
            self._push(frame)

    def _push(self, frame: bytes) -> None:
        self._routers = {router for router in self._routers if not router.closing}
        for router in self._routers:
            router.push(frame)
