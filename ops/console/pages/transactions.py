"""Transactions: those that are known, and one of them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from broker.wire.messages.list_transactions import ListTransactionsRequest
from ops.admin.transaction_state import described_document, listed_documents
from ops.console.rendering import Console


def routes(console: Console) -> list[BaseRoute]:
    backend = console.backend

    async def index(request: Request) -> Response:
        found = await backend.ask(
            lambda cluster: listed_documents(cluster, ListTransactionsRequest())
        )
        return console.page(request, "transactions.html", title="Transactions", found=found)

    async def show(request: Request) -> Response:
        name = request.path_params["id"]
        found = await backend.ask(lambda cluster: described_document(cluster, name))
        return console.page(request, "transaction.html", title=name, found=found)

    return [Route("/transactions", index), Route("/transactions/{id:path}", show)]
