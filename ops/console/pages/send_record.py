"""Sending a record, and sending one again that is there."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.records import decode_headers
from moldau.ops.client import ClientError, Cluster, TopicPartition
from moldau.ops.client.partitioning import partition_of
from moldau.ops.client.reading import OffsetOutOfRange, read
from moldau.ops.client.sending import Outgoing, partitions_for_sending, send
from moldau.ops.console.inputs import MAX_INT32, number_of, read_form
from moldau.ops.console.record_views import View
from moldau.ops.console.rendering import Console


def routes(console: Console) -> list[BaseRoute]:
    backend = console.backend

    async def compose(request: Request) -> Response:
        """The form to send a record; filled in from one that is there, to send it again."""
        view = View.of(request)
        again = request.query_params.get("again", "")
        filled: dict[str, str] = {"key": "", "no_key": "on", "value": "", "headers": ""}
        if again and view.partition is not None:
            place, offset = TopicPartition(view.topic, view.partition), number_of(again, "again")
            filled = await backend.ask(lambda cluster: _filled(cluster, place, offset))
        return console.page(
            request, "send.html", title=f"Send to {view.topic}", view=view, filled=filled
        )

    async def post(request: Request) -> Response:
        console.check_writable()
        form = await read_form(request)
        topic = request.path_params["topic"]
        target = str(form.get("target") or topic)
        headers = _headers(str(form.get("headers", "")))
        key = None if form.get("no_key") else str(form.get("key", "")).encode()
        value = None if form.get("no_value") else _unix_lines(str(form.get("value", ""))).encode()
        record = Outgoing(key, value, headers)
        chosen = str(form.get("partition", "")).strip()
        partition = number_of(chosen, "partition", most=MAX_INT32) if chosen else None
        place, offset = await backend.ask(lambda cluster: _send(cluster, target, partition, record))
        where = View(target, place.partition, str(offset), "", "auto", True).url()
        return console.done(request, where, f"sent: partition {place.partition}, offset {offset}")

    return [
        Route("/topics/{topic}/send", compose),
        Route("/topics/{topic}/send", post, methods=["POST"]),
    ]


def _headers(text: str) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, value = line.partition(":")
        if not colon:
            raise ClientError(f"headers are lines of name: value, not {line!r}")
        headers.append((name.strip(), value.strip().encode()))
    return headers


def _unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n")  # browsers send forms so


def _send(
    cluster: Cluster, topic: str, partition: int | None, record: Outgoing
) -> tuple[TopicPartition, int]:
    partitions = partitions_for_sending(cluster, topic)
    if partition is None:
        partition = partition_of(record.key, int(time.time() * 1000), partitions)
    elif partition >= partitions:
        raise ClientError(f"{topic} has partitions 0 to {partitions - 1}, not {partition}")
    place = TopicPartition(topic, partition)
    return place, send(cluster, place, [record])


def _filled(cluster: Cluster, place: TopicPartition, offset: int) -> dict[str, str]:
    try:
        found = read(cluster, place, offset, committed=False)
    except OffsetOutOfRange:
        raise ClientError(f"{place} has no offset {offset}", ErrorCode.RESOURCE_NOT_FOUND) from None
    record = next((each for each in found.records if each.offset == offset), None)
    if record is None:
        raise ClientError(f"{place} has no record at offset {offset}", ErrorCode.RESOURCE_NOT_FOUND)
    try:
        headers = [
            f"{name}: {(value or b'').decode()}" for name, value in decode_headers(record.headers)
        ]
        return {
            "key": (record.key or b"").decode(),
            "no_key": "on" if record.key is None else "",
            "value": (record.value or b"").decode(),
            "no_value": "on" if record.value is None else "",
            "headers": "\n".join(headers),
        }
    except UnicodeDecodeError:
        raise ClientError(
            f"{place}, offset {offset} is not text: `moldau consume --json` and `moldau produce "
            "--json` copy it byte by byte"
        ) from None
