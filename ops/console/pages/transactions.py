"""Transactions: those that are known, and one of them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moldau.broker.wire.messages.list_transactions import ListTransactionsRequest
from moldau.ops.console.index import page_of
from moldau.ops.console.rendering import Console
from moldau.ops.operations.transactions import describe_transaction, list_with_times


def routes(console: Console) -> list[BaseRoute]:
    backend = console.backend

    async def index(request: Request) -> Response:
        query = request.query_params
        found = await backend.ask(
            lambda cluster: list_with_times(cluster, ListTransactionsRequest())
        )
        by_id = {each.transactional_id: each for each in found}
        page = page_of(sorted(by_id), query.get("q", ""), query.get("page", ""))
        return console.page(
            request, "transactions.html", title="Transactions", page=page,
            found=[by_id[name] for name in page.names],
        )  # fmt: skip

    async def show(request: Request) -> Response:
        name = request.path_params["id"]
        found = await backend.ask(lambda cluster: describe_transaction(cluster, name))
        return console.page(request, "transaction.html", title=name, found=found)

    return [Route("/transactions", index), Route("/transactions/{id:path}", show)]
