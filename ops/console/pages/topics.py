"""Topics: a list, one of them, and what can be done with them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from broker.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from broker.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from broker.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from broker.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ops.admin.topic_state import describe_topic, topic_configs, topic_sizes
from ops.client import ClientError, Cluster, refusal
from ops.console.rendering import Console
from ops.http.reports import Reports

TOPIC_RESOURCE = 2
SET, DELETE = 0, 1
PER_PAGE = 100


def routes(console: Console) -> list[BaseRoute]:
    backend = console.backend

    async def index(request: Request) -> Response:
        reports = await backend.reports()
        wanted = request.query_params.get("q", "").lower()
        number = max(int(request.query_params.get("page", "1") or 1), 1)
        found = [row for row in summaries(reports) if wanted in row["name"].lower()]
        for row in found[(number - 1) * PER_PAGE : number * PER_PAGE]:
            rates = backend.history.record_rates(row["name"])
            row |= {"rates": rates[-60:], "rate": rates[-1] if rates else 0.0}
        return console.page(
            request,
            "topics.html",
            title="Topics",
            topics=found[(number - 1) * PER_PAGE : number * PER_PAGE],
            count=len(found),
            number=number,
            pages=-(-len(found) // PER_PAGE),
            q=request.query_params.get("q", ""),
        )

    async def show(request: Request) -> Response:
        name = request.path_params["topic"]
        topic, configs = await backend.ask(lambda cluster: _described(cluster, name))
        groups = groups_of(await backend.reports(), name)
        return console.page(
            request, "topic.html", title=name, topic=topic, configs=configs, groups=groups,
            rates=backend.history.record_rates(name),
        )  # fmt: skip

    async def create(request: Request) -> Response:
        console.check_writable()
        form = await request.form()
        name = str(form.get("name", "")).strip()
        partitions = int(str(form.get("partitions") or -1))
        configs = parse_configs(str(form.get("configs", "")))
        await backend.ask(lambda cluster: _create(cluster, name, partitions, configs))
        return console.done(f"/topics/{quote(name, safe='')}", f"{name} was created")

    async def change(request: Request) -> Response:
        console.check_writable()
        name = request.path_params["topic"]
        form = await request.form()
        key, value = str(form.get("config", "")), str(form.get("value", ""))
        reset = form.get("action") == "reset"
        await backend.ask(lambda cluster: _alter(cluster, name, key, None if reset else value))
        said = f"{key} has its default again" if reset else f"{key} is {value}"
        return console.done(f"/topics/{quote(name, safe='')}", said)

    async def grow(request: Request) -> Response:
        console.check_writable()
        name = request.path_params["topic"]
        total = int(str((await request.form()).get("partitions") or 0))
        await backend.ask(lambda cluster: _grow(cluster, name, total))
        return console.done(f"/topics/{quote(name, safe='')}", f"{name} has {total} partitions")

    async def delete(request: Request) -> Response:
        console.check_writable()
        name = request.path_params["topic"]
        if str((await request.form()).get("confirm", "")) != name:
            raise ClientError(f"not deleted: type the name, {name}, to confirm")
        await backend.ask(lambda cluster: _delete(cluster, name))
        return console.done("/topics", f"{name} was deleted")

    return [
        Route("/topics", index),
        Route("/topics", create, methods=["POST"]),
        Route("/topics/{topic}", show),
        Route("/topics/{topic}/configs", change, methods=["POST"]),
        Route("/topics/{topic}/partitions", grow, methods=["POST"]),
        Route("/topics/{topic}/delete", delete, methods=["POST"]),
    ]


# --- from reports ---


def summaries(reports: Reports) -> list[dict[str, Any]]:
    """Topics by name, with the groups that have committed offsets of them."""
    topics: dict[str, dict[str, Any]] = {}
    ends: dict[tuple[str, int], tuple[int, int]] = {}
    documents = [document for document in reports.workers if document is not None]
    for document in documents:
        for row in document.partitions:
            topic = topics.setdefault(
                row.topic,
                {"name": row.topic, "partitions": 0, "size": 0, "records": 0, "lag": {}},
            )
            topic["partitions"] += 1
            topic["size"] += row.size
            topic["records"] += row.end - row.start
            ends[row.topic, row.partition] = row.start, row.end
    for document in documents:
        for group in document.groups:
            for committed in group.committed:
                place = committed.topic, committed.partition
                if place in ends:
                    start, end = ends[place]
                    lags = topics[committed.topic]["lag"]
                    behind = max(end - max(committed.offset, start), 0)
                    lags[group.group] = lags.get(group.group, 0) + behind
    return [topics[name] for name in sorted(topics)]


def groups_of(reports: Reports, topic: str) -> list[dict[str, Any]]:
    found = next((row for row in summaries(reports) if row["name"] == topic), None)
    lags = {} if found is None else found["lag"]
    states = {g.group: g for each in reports.workers if each is not None for g in each.groups}
    return [
        {"name": name, "lag": lag, "state": states[name].state, "members": states[name].members}
        for name, lag in sorted(lags.items())
    ]


# --- asking ---


def _described(cluster: Cluster, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    found = cluster.topics([name])
    if name not in found:
        raise ClientError(f"there is no topic {name}")
    topic = describe_topic(cluster, found[name], topic_sizes(cluster, found))
    return topic, topic_configs(cluster, name)


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
