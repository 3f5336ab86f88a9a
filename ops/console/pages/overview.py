"""What happens now: rates, the store, the processes, the slots of groups by owner."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from broker.placement import SLOTS, slot_of
from ops.console.rendering import Console
from ops.http import health
from ops.http.reports import Reports


def routes(console: Console) -> list[BaseRoute]:
    async def show(request: Request) -> Response:
        reports = await console.backend.reports()
        history = console.backend.history
        # The page asks for its changing part again, alone.
        template = "overview_live.html" if request.query_params.get("live") else "overview.html"
        return console.page(
            request,
            template,
            title="Overview",
            problems=health.problems(reports),
            processes=reports.status.processes if reports.status is not None else [],
            store=reports.status.store if reports.status is not None else {},
            slots=slots(reports),
            rates=history.record_rates(),
            request_rates=history.request_rates(),
            totals=totals(reports),
        )

    return [Route("/", show)]


def totals(reports: Reports) -> dict[str, int]:
    documents = [document for document in reports.workers if document is not None]
    rows = [row for document in documents for row in document.partitions]
    return {
        "topics": len({row.topic for row in rows}),
        "partitions": len(rows),
        "bytes": sum(row.size for row in rows),
        "groups": sum(len(document.groups) for document in documents),
        "members": sum(group.members for each in documents for group in each.groups),
    }


def slots(reports: Reports) -> list[dict[str, Any]]:
    """By slot of groups: the worker that owns it, and how many groups and members it has."""
    found: list[dict[str, Any]] = [
        {"slot": slot, "owner": slot % max(len(reports.workers), 1), "groups": 0, "members": 0}
        for slot in range(SLOTS)
    ]
    for document in reports.workers:
        for group in document.groups if document is not None else ():
            slot = found[slot_of(group.group)]
            slot["groups"] += 1
            slot["members"] += group.members
    most = max(slot["members"] for slot in found) or 1
    for slot in found:
        slot["heat"] = 0 if not slot["members"] else 1 + round(4 * slot["members"] / most)
    return found
