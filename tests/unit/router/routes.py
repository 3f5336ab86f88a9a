"""Where the router sends a request, for tests of its routes."""

from __future__ import annotations

from moldau.broker.placement import owner_of
from moldau.broker.wire.apis import APIS, Api, ApiKey
from moldau.broker.wire.frame import request_frame
from moldau.broker.wire.schema import Message
from moldau.router.routing import Route, RoutingTable, find_route

WORKERS = 4
OF_ONE_TRANSACTION = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
)
TABLE = RoutingTable(WORKERS, has_telemetry=True)
BY_REQUEST = {api.request: api for api in APIS.values()}


def framed(request: Message, version: int | None = None, client_id: str | None = "me") -> bytes:
    """A request frame without its length."""
    api = BY_REQUEST[type(request)]
    return request_frame(api, api.highest if version is None else version, 7, client_id, request)[
        4:
    ]


def routed(request: Message, version: int | None = None, workers: int = WORKERS) -> Route:
    frame = framed(request, version)
    return route_of(frame, len(frame), RoutingTable(workers))


def route_of(head: bytes, size: int, table: RoutingTable = TABLE) -> Route:
    return find_route(head, size, table)[0]


def names_of_owners() -> dict[int, str]:
    """A group for each worker."""
    names: dict[int, str] = {}
    for number in range(200):
        names.setdefault(owner_of(f"group-{number}", WORKERS), f"group-{number}")
    assert len(names) == WORKERS
    return names


def key_field(api: Api) -> str:
    """The field of a request that names its one group or transactional id."""
    if api.key == ApiKey.ADD_PARTITIONS_TO_TXN:
        return "v3_and_below_transactional_id"
    return "transactional_id" if api.key in OF_ONE_TRANSACTION else "group_id"
