"""Native streams: create, survey, trim, read in steps; the function library."""

import asyncio
from typing import Any

import pytest

from moldau.broker.errors import StoreFault, StoreRefused
from moldau.broker.store import keys
from moldau.broker.store.native import RawEntries
from moldau.broker.store.native_steps import AT_ONCE
from tests.support.stores.redis_server import RedisServer
from tests.unit.store.native.native_store import (
    BASE,
    MEMBER,
    STREAM,
    add_entries,
    ids,
    opened,
)


class TestTheStream:
    async def test_creation_leaves_an_empty_stream(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            await asyncio.gather(*(store.native.create(b"moldau:new:0", b"b") for _ in range(5)))
            assert client.type("moldau:new:0") == b"stream"
            assert client.xinfo_groups("moldau:new:0") == []

    async def test_where_it_begins_and_ends(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            native = store.native
            assert await store.reply(native.bounds, STREAM, BASE) == (0, b"", b"0-0", 0, 0, 0)
            client.xadd(STREAM, {"n": 1}, id="5-1")
            client.xadd(STREAM, {"n": 2}, id="5-2")
            await native.add_marks(BASE, [b"m1", b"m2"])
            await native.set_start(BASE, 1 << 62)
            bounds = await store.reply(native.bounds, STREAM, BASE)
            assert bounds == (2, b"5-1", b"5-2", 2, 1 << 62, 2)
            client.xdel(STREAM, "5-1")
            bounds = await store.reply(native.bounds, STREAM, BASE)
            assert (bounds.length, bounds.added) == (1, 2)
            client.xadd(STREAM, {"n": 3}, id="5-3")
            assert await native.last_before(STREAM, b"5-3") == b"5-2"
            assert await native.last_before(STREAM, b"5-2") is None
            client.delete(STREAM)
            assert (await store.reply(native.bounds, STREAM, BASE))[:3] == (0, b"", b"0-0")
            client.set(STREAM, "text")
            assert isinstance(await store.reply(native.bounds, STREAM, BASE), StoreRefused)
            with pytest.raises(StoreRefused):
                await native.group_facts(STREAM, "g")

    async def test_a_survey_finds_the_largest_sequence(
        self, server: RedisServer, client: Any
    ) -> None:
        async with opened(server) as store:
            assert await store.native.survey(b"nothing") is None
            assert await store.native.survey(STREAM) == 0
            pipe = client.pipeline()
            for number in range(5000):
                pipe.xadd(STREAM, {"n": 1}, id=f"{number + 1}-{number * 7 % 4999}")
            pipe.execute()
            assert await store.native.survey(STREAM) == 4998

    async def test_trimming(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            pipe = client.pipeline()
            for number in range(1, 3001):
                pipe.xadd(STREAM, {"n": number}, id=f"{number}-0")
            pipe.execute()
            assert await store.native.trim_before(STREAM, b"1235-0") == 1234
            assert ids(client)[0] == (1235, 0)
            await store.native.trim_to(STREAM, 500)
            assert 500 <= client.xlen(STREAM) < 700

    async def test_functions_that_are_gone_are_loaded_again(
        self, server: RedisServer, client: Any
    ) -> None:
        async with opened(server) as store:
            client.function_flush()
            assert await store.native.remove_consumers(STREAM, "g", [MEMBER]) == 0
            client.function_flush()
            assert isinstance(await store.append(b"v"), StoreRefused)
            await store.native.ensure_library()
            outcome = await store.append(b"v")
            assert not isinstance(outcome, StoreFault)
            assert outcome[0] == b"OK"
            assert client.exists(keys.state(BASE))


async def test_many_entries_are_read_in_steps(server: RedisServer, client: Any) -> None:
    async with opened(server) as store:
        add_entries(client, 300, b"small")
        client.xgroup_create(STREAM, "g", "0")
        read, expected = await store.read_group(b"1-0", 1_000)
        assert read == [b"%d-0" % ms for ms in range(1, 301)]
        assert expected == (b"1-0", 0)
        read, expected = await store.read_group(b"301-0", 1_000)
        assert (read, expected) == ([], (None, 0))


@pytest.mark.parametrize("small", [0, AT_ONCE + 36])
async def test_large_entries_end_a_read(server: RedisServer, client: Any, small: int) -> None:
    async with opened(server) as store:
        add_entries(client, small, b"small")
        add_entries(client, 300, bytes(10_000), small + 1)
        client.xgroup_create(STREAM, "g", "0")
        read, _ = await store.read_group(b"1-0", 1_000, 50_000)
        assert small < len(read) <= small + AT_ONCE

        def finish(marks: int | StoreFault, entries: RawEntries | StoreFault) -> None:
            plain.set_result(entries)

        plain: asyncio.Future[Any] = asyncio.Future()
        store.native.read(STREAM, BASE, b"1-0", 1_000, 50_000, finish)
        assert [raw for raw, _ in await plain] == read


async def test_another_reader_of_the_group_between_two_steps(
    server: RedisServer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No gap: what was read before is delivered, and the group stands behind it."""

    async with opened(server) as store:
        add_entries(client, 3 * AT_ONCE, b"small")
        client.xgroup_create(STREAM, "g", "0")
        pipe = store.native._reads
        send, steps = pipe.send, 0

        def interrupted(parts: Any, done: Any) -> None:
            nonlocal steps
            if b"XREADGROUP" in parts[0]:
                steps += 1
                if steps == 3:
                    client.xreadgroup("g", "another", {STREAM: ">"}, count=5)
            send(parts, done)

        monkeypatch.setattr(pipe, "send", interrupted)
        read, _ = await store.read_group(b"1-0", 1_000)
        assert read == [b"%d-0" % ms for ms in range(1, 2 * AT_ONCE + 1)]
        read, expected = await store.read_group(b"%d-0" % (2 * AT_ONCE + 1), 1_000)
        assert read[0] == expected.first == b"%d-0" % (2 * AT_ONCE + 1)
