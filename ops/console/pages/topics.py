"""Topics: a list, and one of them with its forms."""

from __future__ import annotations

import time
from urllib.parse import quote

import msgspec
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moldau.broker.errors import ErrorCode
from moldau.broker.private.stream_views import MAX_STREAMS
from moldau.ops.client import ClientError, Cluster, Denied, TopicPartition
from moldau.ops.console.index import Index, page_of
from moldau.ops.console.inputs import MAX_INT32, check_confirmed, number_of, read_form
from moldau.ops.console.rendering import Console
from moldau.ops.console.streams import Stream, sides
from moldau.ops.local_broker import LocalWorkers
from moldau.ops.operations.configs import Config, alter_topic_configs, topic_configs
from moldau.ops.operations.streams import stream_keys, stream_views
from moldau.ops.operations.topics import (
    BROKER_DEFAULT,
    TopicDescription,
    add_partitions,
    create_topic,
    delete_topic,
    describe_topic,
)


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
        known = await backend.index()
        topic, configs, hidden = await backend.ask(
            lambda cluster: _described(cluster, backend.as_operator(), known, name)
        )
        if not backend.sees_cluster:  # Redis' side names groups, whoever may describe them
            topic = msgspec.structs.replace(topic, native=None)
        topic, streams = await backend.ask(lambda cluster: _with_streams(cluster, topic))
        page = page_of(known.readers.get(name, []), query.get("q", ""), query.get("page", ""))
        groups = known.groups_of(name, page.names)
        return console.page(
            request, "topic.html", title=name, topic=topic, configs=configs, hidden=hidden,
            page=page, groups=groups, rates=backend.history.record_rates(name), streams=streams,
            records=known.topic(name).records if name in known.partitions else topic.records,
            sides=sides(streams or [], groups, int(time.time() * 1000)),
        )  # fmt: skip

    async def create(request: Request) -> Response:
        console.check_writable()
        form = await read_form(request)
        name = str(form.get("name", "")).strip()
        partitions = _partitions(form, BROKER_DEFAULT)
        configs = parse_configs(str(form.get("configs", "")))
        await backend.ask(lambda cluster: create_topic(cluster, name, partitions, configs))
        return console.done(request, f"/topics/{quote(name, safe='')}", f"{name} was created")

    async def change(request: Request) -> Response:
        console.check_writable()
        name = request.path_params["topic"]
        form = await read_form(request)
        key, value = str(form.get("config", "")), str(form.get("value", ""))
        reset = form.get("action") == "reset"
        changes = [(key, None if reset else value)]
        await backend.ask(lambda cluster: alter_topic_configs(cluster, name, changes))
        said = f"{key} has its default again" if reset else f"{key} is {value}"
        return console.done(request, f"/topics/{quote(name, safe='')}", said)

    async def grow(request: Request) -> Response:
        console.check_writable()
        name = request.path_params["topic"]
        total = _partitions(await read_form(request), 0)
        await backend.ask(lambda cluster: add_partitions(cluster, name, total))
        return console.done(
            request, f"/topics/{quote(name, safe='')}", f"{name} has {total} partitions"
        )

    async def delete(request: Request) -> Response:
        console.check_writable()
        name = request.path_params["topic"]
        await check_confirmed(request, name)
        await backend.ask(lambda cluster: delete_topic(cluster, name))
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
    cluster: Cluster, operator: Cluster, known: Index, name: str
) -> tuple[TopicDescription, list[Config], str]:
    """The topic, its configuration, and why that is hidden from the user; empty: it is not."""
    found = cluster.topics([name])
    if name not in found:
        raise ClientError(f"there is no topic {name}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    # As they were reported: to ask for them takes the right to describe the cluster.
    sizes = {
        TopicPartition(name, row.partition): row.size for row in known.partitions.get(name, ())
    }
    with operator:  # the kind of a topic decides how its records are counted
        workers = LocalWorkers(operator, dict(enumerate(known.snapshot.workers)))
        configs = topic_configs(operator, name)
        topic = describe_topic(cluster, workers, found[name], sizes, configs)
    try:
        return topic, topic_configs(cluster, name), ""
    except Denied as denied:
        return msgspec.structs.replace(topic, native=None), [], cluster.worded(denied)


def _with_streams(
    cluster: Cluster, topic: TopicDescription
) -> tuple[TopicDescription, list[Stream] | None]:
    """The topic with the records that its streams hold, and the streams; None: it is not a native
    topic, or no worker can be asked."""
    if topic.native is None:
        return topic, None
    numbers = [each.partition for each in topic.partitions]
    keys = stream_keys(topic.native.stream, topic.name, numbers)
    views = stream_views(LocalWorkers(cluster), keys[:MAX_STREAMS])
    if views is None:
        return topic, None
    lengths = [None if view is None else view.length for view in views]
    lengths += [None] * (len(numbers) - len(lengths))
    partitions = [
        msgspec.structs.replace(each, records=length)
        for each, length in zip(topic.partitions, lengths, strict=True)
    ]
    streams = [
        Stream(number, key.decode("utf-8", "replace"), view)
        for number, key, view in zip(numbers, keys, views, strict=False)
        if view is not None
    ]
    return msgspec.structs.replace(topic, partitions=partitions), streams


def parse_configs(text: str) -> list[tuple[str, str]]:
    """One `name=value` a line. Raises ClientError."""
    configs = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals:
            raise ClientError(f"configurations are lines of name=value, not {line!r}")
        configs[name.strip()] = value.strip()
    return list(configs.items())
