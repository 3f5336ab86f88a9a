"""Passes a request to its handler: `handle` of the module that is named after the API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any, cast

from moldau.broker.broker import Broker
from moldau.broker.logging_setup import LimitedLog, request_logger
from moldau.broker.private.api import PrivateHandler
from moldau.broker.security.identity import Role
from moldau.broker.server.call import Call, RequestRoute
from moldau.broker.server.metering import timed
from moldau.broker.wire.advertised import unsupported_api_versions
from moldau.broker.wire.apis import APIS, Api, ApiKey
from moldau.broker.wire.primitives import MalformedMessage
from moldau.broker.wire.schema import Decoder, Message

logger = logging.getLogger("moldau.server")
limited = LimitedLog(logger)  # clients can send any number of bad requests

# An awaited handler returns its response. A replying handler calls `Call.reply`, now or later:
# those of the hot path and of groups do. If it returns a route, that serves repetitions of the
# request.
AwaitedHandler = Callable[[Broker, Any, Call], Awaitable[Message]]
ReplyingHandler = Callable[[Broker, Any, Call], RequestRoute | None]


def handler_of(api: Api) -> AwaitedHandler | ReplyingHandler:
    """`handle` of the module in `handlers` that is named after the API."""
    module = import_module(f"moldau.broker.handlers.{api.module_name}")
    handler: AwaitedHandler | ReplyingHandler = module.handle
    return handler


_handlers = {key: handler_of(api) for key, api in APIS.items()}
AWAITED: dict[int, AwaitedHandler] = {
    key: handler for key, handler in _handlers.items() if iscoroutinefunction(handler)
}
REPLYING = cast(
    "dict[int, ReplyingHandler]",
    {key: handler for key, handler in _handlers.items() if key not in AWAITED},
)


class Dispatcher:
    """Called by connections for every request that no route serves."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # Private requests by key, for the operator only; subscriptions are answered more than once.
        self.private: Mapping[int, PrivateHandler] = {}
        self.subscriptions: Mapping[int, Callable[[Call], None]] = {}
        self._decoders: dict[tuple[int, int], Decoder[Message]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._logs_requests = False  # no route is kept then, since routes bypass this class

    def use_log_levels(self) -> bool:
        """Returns whether every request is logged from now on."""
        self._logs_requests = request_logger.isEnabledFor(logging.DEBUG)
        return self._logs_requests

    def __call__(self, call: Call, frame: bytearray) -> None:
        header = call.header
        api = header.api
        if api is None:
            self._serve_private(call, frame)
            return
        key = (header.api_key, header.api_version)
        decode = self._decoders.get(key)
        if decode is None:
            if api.is_telemetry and self._broker.telemetry is None:
                _refuse_version(call)
                return
            decode = self._decoders[key] = api.request_codec(header.api_version).decode
        try:
            # Bytes after the request are ignored, as in Kafka: librdkafka's Metadata has some.
            request, _ = decode(frame, header.body_at)
        except MalformedMessage as fault:
            limited.warning(
                f"malformed {api.name}", "closing %s: malformed %s v%d: %s",
                call.peer, api.name, header.api_version, fault,
            )  # fmt: skip
            call.connection.abort()
            return
        if self._logs_requests:
            _log_request(call, api)
        replying = REPLYING.get(header.api_key)
        if replying is not None:
            try:
                route = replying(self._broker, request, call)
            except Exception:
                _give_up(call, api)
                return
            if route is not None and not self._logs_requests and route.learn(frame):
                call.connection.routes.add(route)
            return
        self._spawn(call, self._serve(call, api, request))

    def _serve_private(self, call: Call, frame: bytearray) -> None:
        key, is_operator = call.header.api_key, call.identity.role is Role.OPERATOR
        private, subscribe = self.private.get(key), self.subscriptions.get(key)
        if private is not None and is_operator:
            body = bytes(frame[call.header.body_at :])
            self._spawn(call, _serve_private(private, call, body))
        elif subscribe is not None and is_operator:
            subscribe(call)
        else:
            _refuse_version(call)

    def _spawn(self, call: Call, serving: Coroutine[Any, Any, None]) -> None:
        # One after the other, as in Kafka: a commit and later requests of the same connection must
        # not change places.
        call.connection.hold()
        task = asyncio.get_running_loop().create_task(serving)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, call: Call, api: Api, request: Message) -> None:
        try:
            serving = AWAITED[api.key](self._broker, request, call)
            call.reply(await (timed(serving, call) if call.is_metered else serving))
        except Exception:
            _give_up(call, api)
        else:
            call.connection.resume()


async def _serve_private(serve: PrivateHandler, call: Call, body: bytes) -> None:
    try:
        frame = await serve(body, call.header.correlation_id)
    except Exception:
        logger.exception("serving the private API %d failed", call.header.api_key)
        call.connection.abort()
    else:
        call.reply_with([frame])
        call.connection.resume()


def _log_request(call: Call, api: Api) -> None:
    header = call.header
    request_logger.debug(
        "%s v%d, correlation id %d, %d bytes, of client %s (%s) at %s",
        api.name,
        header.api_version,
        header.correlation_id,
        call.size,
        header.client_id,
        call.identity.principal,
        call.peer,
    )


def _give_up(call: Call, api: Api) -> None:
    """A bug of the broker. The connection is closed, which makes every client retry."""
    logger.exception("serving %s v%d to %s failed", api.name, call.header.api_version, call.peer)
    call.connection.abort()


def _refuse_version(call: Call) -> None:
    """The API, or this version of it, is not served. Only ApiVersions has a reply for that."""
    header = call.header
    known = APIS.get(header.api_key)
    if header.api_key == ApiKey.API_VERSIONS:
        call.reply_with(unsupported_api_versions(header.correlation_id))
        return
    name = known.name if known is not None else f"API {header.api_key}"
    text = "closing %s: %s v%d is not served"
    limited.warning("not served", text, call.peer, name, header.api_version)
    call.connection.abort()
