"""From a frame to its handler: one table, and a test that it covers the table of APIs exactly."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from broker.handlers import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from broker.handlers.context import Broker
from broker.server.connection import Call
from broker.server.request_route import RequestRoute
from broker.wire.advertised import unsupported_api_versions
from broker.wire.apis import API_VERSIONS, APIS, Api
from broker.wire.primitives import MalformedMessage
from broker.wire.schema import Decoder, Message

log = logging.getLogger("moldau.server")

Waiting = Callable[[Broker, Any, Call], Awaitable[Message]]
Replying = Callable[[Broker, Any, Call], RequestRoute | None]

# These reply by themselves: the hot path through callbacks, groups through their machine. What
# they give back serves requests like this one from now on.
REPLYING: dict[int, Replying] = {
    0: produce.handle,
    1: fetch.handle,
    11: join_group.handle,
    12: heartbeat.handle,
    13: leave_group.handle,
    14: sync_group.handle,
}

WAITING: dict[int, Waiting] = {
    2: list_offsets.handle,
    3: metadata.handle,
    8: offset_commit.handle,
    9: offset_fetch.handle,
    10: find_coordinator.handle,
    15: describe_groups.handle,
    16: list_groups.handle,
    API_VERSIONS: api_versions.handle,
    19: create_topics.handle,
    20: delete_topics.handle,
    21: delete_records.handle,
    22: init_producer_id.handle,
    23: offset_for_leader_epoch.handle,
    29: describe_acls.handle,
    32: describe_configs.handle,
    33: alter_configs.handle,
    35: describe_log_dirs.handle,
    37: create_partitions.handle,
    42: delete_groups.handle,
    44: incremental_alter_configs.handle,
    47: offset_delete.handle,
    60: describe_cluster.handle,
    75: describe_topic_partitions.handle,
}


class Dispatcher:
    """Called by connections with every frame."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._decoders: dict[tuple[int, int], Decoder[Message]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, call: Call, frame: bytearray) -> None:
        header = call.header
        api = header.api
        if api is None:
            _refuse_version(call)
            return
        place = (header.api_key, header.api_version)
        decode = self._decoders.get(place)
        if decode is None:
            decode = self._decoders[place] = api.request_codec(header.api_version).decode
        try:
            # Bytes after the request are ignored, as in Kafka: librdkafka's Metadata has some.
            request, _ = decode(frame, header.body_at)
        except MalformedMessage as fault:
            log.warning(
                "closing %s: malformed %s v%d: %s", call.peer, api.name, header.api_version, fault
            )
            call.connection.abort()
            return
        replying = REPLYING.get(header.api_key)
        if replying is not None:
            try:
                route = replying(self._broker, request, call)
            except Exception:
                _give_up(call, api)
                return
            if route is not None and route.learn(frame):
                call.connection.routes.add(route)
            return
        # One after the other, as in Kafka: a commit and what follows it on the same connection
        # must not change places.
        call.connection.hold()
        task = asyncio.get_running_loop().create_task(self._serve(call, api, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, call: Call, api: Api, request: Message) -> None:
        try:
            call.reply(await WAITING[api.key](self._broker, request, call))
        except Exception:
            _give_up(call, api)
        else:
            call.connection.go_on()


def _give_up(call: Call, api: Api) -> None:
    """A fault of ours. The client sees a closed connection, which every client retries."""
    log.exception("serving %s v%d to %s failed", api.name, call.header.api_version, call.peer)
    call.connection.abort()


def _refuse_version(call: Call) -> None:
    """An API or a version of one that is not served: say so where the protocol has a way."""
    header = call.header
    known = APIS.get(header.api_key)
    if header.api_key == API_VERSIONS:
        call.reply_with(unsupported_api_versions(header.correlation_id))
        return
    name = known.name if known is not None else f"API {header.api_key}"
    log.warning("closing %s: %s v%d is not served", call.peer, name, header.api_version)
    call.connection.abort()
