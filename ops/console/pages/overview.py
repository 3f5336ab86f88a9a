"""The overview: rates, the store, the processes, the slots of groups by owner."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moldau.ops.console.rendering import Console
from moldau.ops.http import health
from moldau.ops.operations.top import store_memory


def routes(console: Console) -> list[BaseRoute]:
    async def show(request: Request) -> Response:
        index = await console.backend.index()
        snapshot = index.snapshot
        history = console.backend.history
        # The page asks for its changing part again, alone.
        template = "overview_live.html" if request.query_params.get("live") else "overview.html"
        return console.page(
            request,
            template,
            title="Overview",
            problems=health.problems(snapshot),
            processes=snapshot.status.processes if snapshot.status is not None else [],
            store=snapshot.status.store if snapshot.status is not None else {},
            slots=index.slots,
            rates=history.record_rates(),
            request_rates=history.request_rates(),
            totals=index.totals,
            figures=console.backend.figures(),
            memory=store_memory(snapshot),
            workers=len(snapshot.workers),
        )

    return [Route("/", show)]
