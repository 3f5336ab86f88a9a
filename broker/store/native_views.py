"""What Redis shows of a stream: XINFO, its groups and consumers, what is pending, the last entries.

It is shown to people: it is bounded, and its parts need not be of the same moment.
"""

from __future__ import annotations

import time

from moldau.broker.private.stream_views import (
    MAX_CONSUMERS,
    MAX_ENTRIES,
    MAX_FIELD_BYTES,
    MAX_GROUPS,
    MAX_PENDING,
    ConsumerView,
    EntryView,
    FieldView,
    GroupView,
    PendingView,
    StreamView,
)
from moldau.broker.store.native import NativeStreams, StreamGroup
from moldau.broker.store.pipe import Pipe, pairs


class NativeViews:
    def __init__(self, control: Pipe, native: NativeStreams) -> None:
        self._control = control
        self._native = native

    async def view(
        self, key: bytes, until: float, *, has_groups: bool, has_entries: bool
    ) -> StreamView:
        """`until`: a time of time.monotonic(); after it, groups are listed without details."""
        kind: bytes = await self._control.ask("TYPE", key)
        if kind != b"stream":
            return StreamView(kind.decode())
        facts = await self._native.facts_of(key)
        groups = await self._native.groups_of(key) if has_groups else []
        return StreamView(
            "stream",
            facts.length,
            facts.added,
            facts.first.decode(),
            facts.last.decode(),
            await self._native.memory(key),
            len(groups),
            [await self._group(key, group, until) for group in groups[:MAX_GROUPS]],
            await self._entries(key) if has_entries else [],
        )

    async def _group(self, key: bytes, group: StreamGroup, until: float) -> GroupView:
        consumers: list[ConsumerView] = []
        pending: list[PendingView] = []
        if time.monotonic() < until:
            found = await self._control.ask("XINFO", "CONSUMERS", key, group.raw_name)
            consumers = [
                ConsumerView(_text(facts[b"name"]), facts[b"pending"], facts[b"idle"])
                for facts in map(pairs, found[:MAX_CONSUMERS])
            ]
            if group.pending:
                words = ("XPENDING", key, group.raw_name, "-", "+", MAX_PENDING)
                pending = [
                    PendingView(_text(entry), _text(consumer), idle_ms, deliveries)
                    for entry, consumer, idle_ms, deliveries in await self._control.ask(*words)
                ]
        return GroupView(
            group.name,
            group.consumers,
            group.pending,
            group.last_delivered.decode(),
            group.entries_read,
            group.lag,
            consumers,
            pending,
        )

    async def _entries(self, key: bytes) -> list[EntryView]:
        found = await self._native.newest_cut(key, MAX_ENTRIES, MAX_FIELD_BYTES)
        return [
            EntryView(
                _text(entry),
                [
                    FieldView(name, value, size)
                    for name, value, size in zip(words[::3], words[1::3], words[2::3], strict=True)
                ],
                count,
            )
            for entry, words, count in found
        ]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
