"""What a lake must hold of the topics of spark.py: every record once, in place."""

from __future__ import annotations

from typing import Any

from moldau.broker.wire.batch import read_header
from moldau.broker.wire.records import decode_headers, read_records
from moldau.ops.pipeline.lake.schemas import BATCHES, RECORDS
from moldau.ops.pipeline.lake.tables import Lake
from tests.support.pipeline.spark import headers_of, key_of, timestamp_of, value_of


def rows_of(lake: Lake, table: str, columns: list[str] | None = None) -> Any:
    return lake.open(table).to_pyarrow_table(columns=columns)


def check_lake(lake: Lake, topic: str, per_partition: list[int]) -> None:
    """Counts, order and bytes of both tables, as if they were produced again and compared."""
    check_records(lake, topic, per_partition)
    check_batches(lake, topic, per_partition)


def check_records(lake: Lake, topic: str, per_partition: list[int]) -> None:
    table = rows_of(lake, RECORDS)
    seen: dict[int, set[int]] = {}
    for rows in table.to_batches():
        columns = {name: rows.column(name).to_pylist() for name in
                   ("topic", "date", "partition", "offset", "timestampType", "key", "value",
                    "headers")}  # fmt: skip
        stamps = rows.column("timestamp").cast("int64").to_pylist()
        for at, (name, partition, offset) in enumerate(
            zip(columns["topic"], columns["partition"], columns["offset"], strict=True)
        ):
            if name != topic:
                continue
            found = seen.setdefault(partition, set())
            assert offset not in found, f"{topic}-{partition} has offset {offset} twice"
            found.add(offset)
            assert columns["key"][at] == key_of(partition, offset)
            assert columns["value"][at] == value_of(partition, offset)
            headers = [(one["key"], one["value"]) for one in columns["headers"][at] or ()]
            assert headers == headers_of(partition, offset)
            assert stamps[at] == timestamp_of(offset) * 1000
            assert columns["timestampType"][at] == 0
    assert seen == {p: set(range(count)) for p, count in enumerate(per_partition) if count}


def check_batches(lake: Lake, topic: str, per_partition: list[int]) -> None:
    """The stored bytes are whole batches that follow one another without gap or overlap."""
    ends: dict[int, int] = {}
    rows = rows_of(lake, BATCHES).sort_by(
        [("partition", "ascending"), ("base_offset", "ascending")]
    )
    for row in rows.to_pylist():
        if row["topic"] != topic:
            continue
        partition = row["partition"]
        header = read_header(row["data"])
        assert header.size == len(row["data"])
        assert header.base_offset == row["base_offset"] == ends.get(partition, 0)
        assert header.next_offset - 1 == row["last_offset"]
        assert header.record_count == row["record_count"]
        ends[partition] = header.next_offset
        for record in read_records(row["data"], 1 << 30):
            assert record.key == key_of(partition, record.offset)
            assert record.value == value_of(partition, record.offset)
            assert decode_headers(record.headers) == headers_of(partition, record.offset)
    assert ends == {p: count for p, count in enumerate(per_partition) if count}
