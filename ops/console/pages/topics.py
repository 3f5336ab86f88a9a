"""Topics: a list, one of them, and what can be done with them."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moldau.broker.errors import ErrorCode
from moldau.broker.metrics.document import PartitionRow
from moldau.broker.metrics.stream_views import MAX_STREAMS
from moldau.broker.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from moldau.broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from moldau.broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.broker.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.ops.client import ClientError, Cluster, Denied, refusal
from moldau.ops.console.forms import read_form
from moldau.ops.console.index import page_of
from moldau.ops.console.inputs import MAX_INT32, number_of
from moldau.ops.console.rendering import Console
from moldau.ops.console.streams import Stream, sides
from moldau.ops.operations.streams import stream_keys, stream_views
from moldau.ops.operations.topics import describe_topic, topic_configs

TOPIC_RESOURCE = 2
SET, DELETE = 0, 1


def routes(console: Console) -> list[BaseRoute]:
    backend = console.backend

    async def index(request: Request) -> Response:
        query = request.query_params
        known = await backend.index()
        page = page_of(known.topic_names, query.get("q", ""), query.get("page", ""))
        return console.page(
            request, "topics.html", title="Topics", page=page,
            topics=[known.topic(name) for name in page.names],
            rates={name: backend.history.record_rates(name, 60) for name in page.names},
        )  # fmt: skip

    async def show(request: Request) -> Response:
        name = request.path_params["topic"]
        query = request.query_params
        topic, configs, hidden = await backend.ask(
            lambda cluster: _described(cluster, backend.as_operator(), name)
        )
        known = await backend.index()
        _add_sizes(topic, known.partitions.get(name, []))
        if not backend.sees_cluster:  # Redis' side names groups, whoever may describe them
            topic["native"] = None
        streams = await backend.ask(lambda cluster: _streams(cluster, topic))
        page = page_of(known.readers.get(name, []), query.get("q", ""), query.get("page", ""))
        groups = known.groups_of(name, page.names)
        return console.page(
            request, "topic.html", title=name, topic=topic, configs=configs, hidden=hidden,
            page=page, groups=groups, rates=backend.history.record_rates(name), streams=streams,
            records=known.topic(name).records if name in known.partitions else topic["records"],
            sides=sides(streams or [], groups, int(time.time() * 1000)),
        )  # fmt: skip

    async def create(request: Request) -> Response:
        console.check_writable()
        form = await read_form(request)
        name = str(form.get("name", "")).strip()
        partitions = _partitions(form, -1)
        configs = parse_configs(str(form.get("configs", "")))
        await backend.ask(lambda cluster: _create(cluster, name, partitions, configs))
        return console.done(request, f"/topics/{quote(name, safe='')}", f"{name} was created")

    async def change(request: Request) -> Response:
        console.check_writable()
        name = request.path_params["topic"]
        form = await read_form(request)
        key, value = str(form.get("config", "")), str(form.get("value", ""))
        reset = form.get("action") == "reset"
        await backend.ask(lambda cluster: _alter(cluster, name, key, None if reset else value))
        said = f"{key} has its default again" if reset else f"{key} is {value}"
        return console.done(request, f"/topics/{quote(name, safe='')}", said)

    async def grow(request: Request) -> Response:
        console.check_writable()
        name = request.path_params["topic"]
        total = _partitions(await read_form(request), 0)
        await backend.ask(lambda cluster: _grow(cluster, name, total))
        return console.done(
            request, f"/topics/{quote(name, safe='')}", f"{name} has {total} partitions"
        )

    async def delete(request: Request) -> Response:
        console.check_writable()
        name = request.path_params["topic"]
        if str((await read_form(request)).get("confirm", "")) != name:
            raise ClientError(f"not deleted: type the name, {name}, to confirm")
        await backend.ask(lambda cluster: _delete(cluster, name))
        return console.done(request, "/topics", f"{name} was deleted")

    return [
        Route("/topics", index),
        Route("/topics", create, methods=["POST"]),
        Route("/topics/{topic}", show),
        Route("/topics/{topic}/configs", change, methods=["POST"]),
        Route("/topics/{topic}/partitions", grow, methods=["POST"]),
        Route("/topics/{topic}/delete", delete, methods=["POST"]),
    ]


def _partitions(form: FormData, default: int) -> int:
    """Raises InvalidInput."""
    text = str(form.get("partitions", "")).strip()
    return number_of(text, "partitions", least=1, most=MAX_INT32) if text else default


# --- asking ---


def _described(
    cluster: Cluster, operator: Cluster, name: str
) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """The topic, its configuration, and why that is hidden from the user; empty: it is not."""
    found = cluster.topics([name])
    if name not in found:
        raise ClientError(f"there is no topic {name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    with operator:  # the kind of a topic decides how its records are counted
        configs = topic_configs(operator, name)
    topic = describe_topic(cluster, found[name], {}, configs)
    try:
        return topic, topic_configs(cluster, name), ""
    except Denied as denied:
        return topic | {"native": None}, [], cluster.worded(denied)


def _add_sizes(topic: dict[str, Any], rows: list[PartitionRow]) -> None:
    """As they were reported: to ask for them takes the right to describe the cluster."""
    sizes = {row.partition: row.size for row in rows}
    for each in topic["partitions"]:
        each["size_bytes"] = sizes.get(each["partition"], 0)
    topic["size_bytes"] = sum(sizes.values())


def _streams(cluster: Cluster, topic: dict[str, Any]) -> list[Stream] | None:
    """None: not a native topic, or they cannot be asked for."""
    if topic["native"] is None:
        return None
    numbers = [each["partition"] for each in topic["partitions"]]
    keys = stream_keys(topic["native"]["stream"], topic["name"], numbers)
    views = stream_views(cluster, keys[:MAX_STREAMS])
    if views is None:
        return None
    for each, view in zip(topic["partitions"], views, strict=False):
        each["records"] = None if view is None else view.length
    return [
        Stream(number, key.decode("utf-8", "replace"), view)
        for number, key, view in zip(numbers, keys, views, strict=False)
        if view is not None
    ]


def parse_configs(text: str) -> dict[str, str]:
    """One `name=value` a line. Raises ClientError."""
    configs = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals:
            raise ClientError(f"configurations are lines of name=value, not {line!r}")
        configs[name.strip()] = value.strip()
    return configs


def _create(cluster: Cluster, name: str, partitions: int, configs: dict[str, str]) -> None:
    topic = CreatableTopic(
        name, partitions, -1, configs=[CreatableTopicConfig(*item) for item in configs.items()]
    )
    (done,) = cluster.call(CreateTopicsRequest([topic], timeout_ms=30_000)).topics
    if done.error_code:
        raise refusal(f"topic {name}", done.error_code, done.error_message)


def _alter(cluster: Cluster, name: str, key: str, value: str | None) -> None:
    change = AlterableConfig(key, DELETE if value is None else SET, value)
    resource = AlterConfigsResource(TOPIC_RESOURCE, name, [change])
    (done,) = cluster.call(IncrementalAlterConfigsRequest([resource])).responses
    if done.error_code:
        raise refusal(f"topic {name}", done.error_code, done.error_message)


def _grow(cluster: Cluster, name: str, total: int) -> None:
    request = CreatePartitionsRequest([CreatePartitionsTopic(name, total, None)], timeout_ms=30_000)
    (done,) = cluster.call(request).results
    if done.error_code:
        raise refusal(f"topic {name}", done.error_code, done.error_message)


def _delete(cluster: Cluster, name: str) -> None:
    request = DeleteTopicsRequest([DeleteTopicState(name)], [name], timeout_ms=30_000)
    (done,) = cluster.call(request).responses
    if done.error_code:
        raise refusal(f"topic {name}", done.error_code, done.error_message)
