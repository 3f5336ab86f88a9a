"""Consumer groups: a list, one of them with its members and lag, and resetting its offsets."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moldau.broker.errors import ErrorCode
from moldau.ops.client import ClientError, Cluster
from moldau.ops.console.film import causes, draw, members_of
from moldau.ops.console.index import page_of
from moldau.ops.console.inputs import check_confirmed, read_form
from moldau.ops.console.rendering import Console
from moldau.ops.http.clients import Measure, measures
from moldau.ops.http.lag import worst
from moldau.ops.http.snapshot import Snapshot
from moldau.ops.local_broker import LocalWorkers
from moldau.ops.operations.group_history import film as make_film
from moldau.ops.operations.groups import GroupDescription, delete_group, describe_group
from moldau.ops.operations.lag import LagCounter
from moldau.ops.operations.reset_offsets import GOALS, Goal, Move, execute, make_plan, parse_topic

LENGTHS = {
    "5min": 300_000,
    "15min": 900_000,
    "1h": 3_600_000,
    "6h": 21_600_000,
    "1d": 86_400_000,
    "7d": 604_800_000,
}


def routes(console: Console) -> list[BaseRoute]:
    backend = console.backend

    async def described(snapshot: Snapshot, name: str) -> GroupDescription:
        def describe(cluster: Cluster) -> GroupDescription:
            # How lag is counted depends on the kind of topic, not on who looks at it.
            with backend.as_operator() as operator:
                workers = LocalWorkers(operator, dict(enumerate(snapshot.workers)))
                return describe_group(cluster, workers, LagCounter(operator, workers), name)

        return await backend.ask(describe)

    async def index(request: Request) -> Response:
        query = request.query_params
        known = await backend.index()
        page = page_of(known.group_names, query.get("q", ""), query.get("page", ""))
        return console.page(
            request, "groups.html", title="Groups", page=page,
            groups=[known.group(name) for name in page.names],
        )  # fmt: skip

    async def show(request: Request) -> Response:
        name = request.path_params["group"]
        known = await backend.index()
        group = await described(known.snapshot, name)
        template = "group_live.html" if request.query_params.get("live") else "group.html"
        ages = known.ages(name)
        return console.page(
            request, template, title=name, group=group, ages=ages, oldest=worst(ages.values()),
            measures=measured(known.snapshot, group),
            hues=backend.hues.of(name, [each.member_id for each in group.members]),
        )  # fmt: skip

    async def show_measures(request: Request) -> Response:
        """Everything that a member has pushed of its own metrics."""
        name, wanted = request.path_params["group"], request.query_params.get("client", "")
        snapshot = await backend.snapshot()
        known = measured(snapshot, await described(snapshot, name))
        found = next((each for each in known if each.instance_id == wanted), None)
        if found is None:
            raise ClientError(
                f"no member of {name} with this id has pushed metrics lately",
                ErrorCode.RESOURCE_NOT_FOUND,
            )
        return console.page(request, "measures.html", title=name, group=name, measure=found)

    async def film(request: Request) -> Response:
        """The picture of who read what: a fragment, asked for every second while it is live."""
        name = request.path_params["group"]
        query = request.query_params
        length_ms = LENGTHS.get(query.get("since", ""), LENGTHS["15min"])
        by = "member" if query.get("by") == "member" else "partition"
        until_ms = int(time.time() * 1000)
        since_ms = until_ms - length_ms
        events = await backend.events(name, since_ms)
        shown = make_film(events, since_ms, until_ms)
        hues = backend.hues.of(name, members_of(shown))
        lags = [point for point in backend.history.lags(name) if point[0] >= since_ms]
        return console.page(
            request, "film.html", title=name, group=name, film=shown, by=by,
            picture=draw(shown, hues, by=by, lags=lags), causes=causes(shown),
            lengths=list(LENGTHS), since=query.get("since", "15min"),
        )  # fmt: skip

    async def reset(request: Request) -> Response:
        """Show the plan; carry it out once it is confirmed."""
        form = await read_form(request)
        name = request.path_params["group"]
        goal, topics = _wanted(dict(form))
        if not form.get("execute"):
            plan = await backend.ask(lambda cluster: make_plan(cluster, name, topics, goal))
            return console.page(
                request, "reset.html", title=f"Reset {name}", group=name, plan=plan,
                form={key: str(value) for key, value in form.items()},
            )  # fmt: skip
        console.check_writable()

        def move(cluster: Cluster) -> list[Move]:
            plan = make_plan(cluster, name, topics, goal)
            execute(cluster, name, plan)
            return plan

        moved = await backend.ask(move)
        return console.done(request, _url(name), f"{len(moved)} offsets were reset")

    async def delete(request: Request) -> Response:
        console.check_writable()
        name = request.path_params["group"]
        await check_confirmed(request, name)
        await backend.ask(lambda cluster: delete_group(cluster, name))
        return console.done(request, "/groups", f"{name} was deleted")

    return [
        Route("/groups", index),
        Route("/groups/{group:path}/film", film),
        Route("/groups/{group:path}/measures", show_measures),
        Route("/groups/{group:path}", show),
        Route("/groups/{group:path}/reset", reset, methods=["POST"]),
        Route("/groups/{group:path}/delete", delete, methods=["POST"]),
    ]


def _url(group: str) -> str:
    return f"/groups/{quote(group, safe='')}"


def measured(snapshot: Snapshot, group: GroupDescription) -> list[Measure]:
    """Metrics that the members of a group have pushed."""
    return measures(snapshot, group.group, group.members, int(time.time() * 1000))


def _wanted(form: dict[str, Any]) -> tuple[Goal, list[tuple[str, frozenset[int] | None]] | None]:
    parse = GOALS.get(str(form.get("goal", "")))
    if parse is None:
        raise ClientError("choose where to reset the offsets to")
    try:
        goal = parse(str(form.get("value", "")).strip())
        text = str(form.get("topics", "")).split()
        return goal, [parse_topic(each) for each in text] or None
    except ValueError as fault:
        raise ClientError(str(fault)) from None
