"""What is removed from a native stream: retention, DeleteRecords, producers that expired."""

from __future__ import annotations

from moldau.broker.log.native.view import NativeView
from moldau.broker.settings.kafka import TopicConfig
from moldau.broker.store.native import NativeStreams
from moldau.broker.store.stream_ids import Id, parse

NO_LIMIT = -1


async def enforce(
    native: NativeStreams,
    log: NativeView,
    config: TopicConfig,
    kept_producers_ms: int,
    now_ms: int,
) -> None:
    """retention.ms, retention.bytes, and the expiry of producers that write no more."""
    removed = 0
    if config.retention_ms != NO_LIMIT:
        oldest = Id(max(now_ms - config.retention_ms, 0), 0)
        last = await native.last_before(log.key, bytes(oldest))
        if last is not None:
            removed += await native.trim_before(log.key, bytes(oldest))
            await raise_start(native, log, log.numbering.offset_behind(parse(last)))
    if config.retention_bytes != NO_LIMIT:
        size = await native.memory(log.key)
        if size > config.retention_bytes:
            length = await native.length(log.key)
            removed += await native.trim_to(log.key, length * config.retention_bytes // size)
    saved = await native.producers(log.base)
    silent = [name for name, value in saved.items() if now_ms - used_ms(value) > kept_producers_ms]
    if silent:
        await native.forget_producers(log.base, silent)
    if removed:
        await log.current()


async def raise_start(native: NativeStreams, log: NativeView, offset: int) -> None:
    """Only for what Moldau removes: offsets of entries that Redis clients delete stay valid."""
    await log.current()
    if offset > log.start:
        await native.set_start(log.base, offset)


def used_ms(saved: bytes) -> int:
    """When a producer wrote last, as saved: `epoch used;...`."""
    return int(saved.split(b";")[0].split(b" ")[1])


async def delete_before(native: NativeStreams, log: NativeView, offset: int) -> int:
    """Remove the entries before `offset`; returns the new log start."""
    await native.trim_before(log.key, bytes(log.numbering.start_at(offset).first))
    await raise_start(native, log, offset)
    await log.current()
    return log.start
