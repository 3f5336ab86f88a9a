"""Records of a topic as the page and its live tail show them."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from starlette.requests import Request

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.records import Record, decode_headers
from moldau.ops.client import ClientError, Cluster, TopicPartition
from moldau.ops.console import filters
from moldau.ops.console.formats import FORMATS, shown_bytes
from moldau.ops.console.inputs import MAX_INT32, number_of

LINE = 160  # characters of a value, before it is folded


class View(NamedTuple):
    """The records to show: all of it is in the URL."""

    topic: str
    partition: int | None
    begin: str  # end, beginning, an offset, a time
    text: str  # the filter
    how: str  # the format of values
    committed: bool

    @classmethod
    def of(cls, request: Request) -> View:
        query = request.query_params
        partition = query.get("partition", "")
        how = query.get("format", "auto")
        return cls(
            request.path_params["topic"],
            number_of(partition, "partition", most=MAX_INT32) if partition else None,
            query.get("from", "end").strip() or "end",
            query.get("filter", ""),
            how if how in FORMATS else "auto",
            query.get("isolation") != "uncommitted",
        )

    def url(self, **changes: str) -> str:
        facts = {
            "partition": "" if self.partition is None else str(self.partition),
            "from": self.begin,
            "filter": self.text,
            "format": self.how,
            "isolation": "" if self.committed else "uncommitted",
            **changes,
        }
        query = urlencode({name: value for name, value in facts.items() if value})
        return f"/topics/{quote(self.topic, safe='')}/records?{query}"


def filter_of(view: View) -> tuple[filters.Filter, str]:
    try:
        return filters.parse(view.text), ""
    except filters.InvalidFilter as fault:
        return (lambda record: False), str(fault)


def places_of(cluster: Cluster, view: View) -> list[TopicPartition]:
    found = cluster.topics([view.topic])
    if view.topic not in found:
        raise ClientError(f"there is no topic {view.topic}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    count = len(found[view.topic].partitions)
    if view.partition is None:
        return [TopicPartition(view.topic, number) for number in range(count)]
    if view.partition >= count:
        raise ClientError(
            f"{view.topic} has partitions 0 to {count - 1}, not {view.partition}",
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
    return [TopicPartition(view.topic, view.partition)]


def offsets_of(
    cluster: Cluster, places: list[TopicPartition], timestamp: int, committed: bool
) -> dict[int, int]:
    found = cluster.list_offsets(dict.fromkeys(places, timestamp), int(committed))
    return {place.partition: offset for place, offset in found.items()}


def one_line(value: str) -> str:
    """The beginning of a value; all of it where that is a line."""
    line = " ".join(value.split()) if "\n" in value else value
    return line if len(line) <= LINE else line[: LINE - 1] + "…"


def row_of(partition: int, record: Record, how: str) -> dict[str, Any]:
    value, value_format = shown_bytes(record.value, how)
    key, key_format = shown_bytes(record.key, "auto" if how in ("json", "msgpack") else how)
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": key,
        "key_format": key_format,
        "value": value,
        "line": one_line(value),
        "value_format": value_format,
        "size": len(record.value or b""),
        "headers": [(name, shown_bytes(data)[0]) for name, data in decode_headers(record.headers)],
    }
