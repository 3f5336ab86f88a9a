"""The reply to a request that was sent to several workers. It is complete when all have replied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moldau.broker.wire.apis import Api
from moldau.broker.wire.frame import read_response, response_frame
from moldau.broker.wire.schema import Message
from moldau.router.merge import merge
from moldau.router.routing import RequestPart
from moldau.router.unavailable import unavailable_response


class GatheredReply:
    """Collects the workers' responses. `frame` is the merged response frame once all have
    arrived."""

    __slots__ = ("_api", "_correlation_id", "_keys", "_requests", "_responses", "_version", "frame")

    def __init__(
        self,
        api: Api,
        version: int,
        correlation_id: int,
        keys: Sequence[str],
        parts: Sequence[RequestPart],
    ) -> None:
        self._api = api
        self._version = version
        self._correlation_id = correlation_id
        self._keys = keys
        self._requests: dict[int, Any] = {part.worker: part.request for part in parts}
        self._responses: dict[int, Message] = {}
        self.frame: bytes | None = None

    def deliver(self, worker: int, frame: bytes) -> None:
        """Take a worker's response frame, without its length. Raises MalformedMessage."""
        _, message = read_response(self._api, self._version, frame)
        self._add(worker, message)

    def fail(self, worker: int) -> None:
        """Answer the part of a worker that is down with COORDINATOR_NOT_AVAILABLE."""
        message = unavailable_response(self._api, self._version, self._requests[worker])
        assert message is not None, f"{self._api.name} is split and has no error response"
        self._add(worker, message)

    def _add(self, worker: int, message: Message) -> None:
        self._responses[worker] = message
        if len(self._responses) == len(self._requests):
            merged = merge(
                self._api, self._keys, [self._responses[each] for each in self._requests]
            )
            self.frame = b"".join(
                response_frame(self._api, self._version, self._correlation_id, merged)
            )
