"""Compaction without a worker: what maintenance has of it, logs to compact, what is in them then.

async with Host(url) as host:
    cleaner = Cleaner(host, await create(host))
    await write(cleaner.log, ("key", "value"))
    assert await cleaner.run()
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from moldau.broker.errors import StoreFault
from moldau.broker.log.keeping.compaction import Compaction
from moldau.broker.log.partition import PartitionLog
from moldau.broker.settings.kafka import TopicConfig, topic_config
from moldau.broker.store.cleaned import Cleaned
from moldau.broker.wire.batch import read_header, split_batches
from moldau.broker.wire.records import Record, read_records
from tests.support.drivers.log_host import Host, append
from tests.support.raw.calls import StoredLog
from tests.support.raw.client import make_batch

NOW = 1_700_000_000_000
EAGER = {"cleanup.policy": "compact,delete", "retention.ms": "-1", "min.cleanable.dirty.ratio": "0"}
_names = (f"compacted-{number}" for number in itertools.count())


class Cleaner:
    """A host with what maintenance has, and a log of its own view."""

    def __init__(self, host: Host, topic: str) -> None:
        self.host = host
        self.log = host.log(topic)
        self.retention = host.retention
        self.compaction = Compaction(host.streams, Cleaned(host.bulk, host.control), self.retention)

    async def run(self, now_ms: int = NOW, **configs: object) -> bool:
        await self.log.current()
        return await self.compaction.compact(self.log, config(**configs), now_ms)


def config(**changed: object) -> TopicConfig:
    chosen = {name.replace("_", "."): str(value) for name, value in changed.items()}
    return topic_config({**EAGER, **chosen})


async def create(host: Host) -> str:
    name = next(_names)
    await host.create(name)
    return name


async def write(log: PartitionLog, *pairs: tuple[str, str | None], at: int = NOW) -> int:
    """One batch in an entry of its own: (key, value) records."""
    records = [
        (key.encode(), None if value is None else value.encode(), at) for key, value in pairs
    ]
    return await append(log, make_batch(records))


async def read_on(log: PartitionLog, offset: int = 0, limit: int = 1 << 20) -> list[Record]:
    """Read to the end, from the store and not from the tail cache, as consumers do."""
    records: list[Record] = []
    while offset < log.end:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        log.reader.read_store(offset, limit, at_least_one=True, done=future.set_result)
        got = await future
        if isinstance(got, StoreFault):
            raise got
        batches = [batch for part in got for batch in split_batches(part)]
        if not batches:
            break
        for batch in batches:
            records += [r for r in read_records(batch, 1 << 30) if r.offset >= offset]
        offset = read_header(batches[-1]).next_offset
    return records


def contents(records: list[Record]) -> dict[str, tuple[int, str | None]]:
    """Key to offset and value of its last record."""
    return {
        (record.key or b"").decode(): (
            record.offset,
            None if record.value is None else record.value.decode(),
        )
        for record in records
    }


def check_size(log: PartitionLog, store: Any) -> None:
    """What DescribeLogDirs would say is what lies in the store."""
    assert log.reader.size == StoredLog(store, log.topic).bytes_from(log.start)
