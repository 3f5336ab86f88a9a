"""The answer to one request that several workers were asked: complete when all have answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker.wire.apis import Api
from broker.wire.frame import read_response, response_frame
from broker.wire.schema import Message
from router.merge import merge
from router.routing import Part
from router.unavailable import refusal


class Gather:
    """Takes the workers' answers; `reply` is the response frame once there is one."""

    __slots__ = ("_answers", "_api", "_correlation_id", "_keys", "_parts", "_version", "reply")

    def __init__(
        self,
        api: Api,
        version: int,
        correlation_id: int,
        keys: Sequence[str],
        parts: Sequence[Part],
    ) -> None:
        self._api = api
        self._version = version
        self._correlation_id = correlation_id
        self._keys = keys
        self._parts: dict[int, Any] = {part.worker: part.request for part in parts}
        self._answers: dict[int, Message] = {}
        self.reply: bytes | None = None

    def deliver(self, worker: int, frame: bytes) -> None:
        """A worker's response frame, without its length. Raises MalformedMessage."""
        _, message = read_response(self._api, self._version, frame)
        self._add(worker, message)

    def fail(self, worker: int) -> None:
        """A worker is away: what it would have told is refused in its place."""
        message = refusal(self._api.key, self._version, self._parts[worker])
        assert message is not None, f"{self._api.name} is split and cannot be refused"
        self._add(worker, message)

    def _add(self, worker: int, message: Message) -> None:
        self._answers[worker] = message
        if len(self._answers) == len(self._parts):
            answers = [self._answers[each] for each in self._parts]
            merged = merge(self._api, self._keys, answers)
            self.reply = b"".join(
                response_frame(self._api, self._version, self._correlation_id, merged)
            )
