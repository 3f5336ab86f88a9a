"""Redis consumer groups of native streams: read, move, acknowledge, remove."""

from typing import Any

from moldau.broker.errors import StoreFault
from tests.support.stores.redis_server import RedisServer
from tests.unit.store.native.native_store import (
    MEMBER,
    OTHER,
    STREAM,
    opened,
    until,
)


class TestGroups:
    async def test_what_is_read_is_compared_with_what_should_be(
        self, server: RedisServer, client: Any
    ) -> None:
        async with opened(server) as store:
            for number in range(1, 5):
                client.xadd(STREAM, {"n": number}, id=f"{number}-0")
            client.xgroup_create(STREAM, "g", "1-0")
            read, expected = await store.read_group(b"2-0", 2)
            assert (read, expected.first) == ([b"2-0", b"3-0"], b"2-0")
            read, expected = await store.read_group(b"2-0", 2)
            assert (read, expected.first) == ([b"4-0"], b"2-0")
            read, expected = await store.read_group(b"5-0", 2)
            assert (read, expected.first) == ([], None)

    async def test_what_is_given_back_is_as_if_it_had_not_been_read(
        self, server: RedisServer, client: Any
    ) -> None:
        async with opened(server) as store:
            for number in range(1, 6):
                client.xadd(STREAM, {"n": number}, id=f"{number}-0")
            client.xgroup_create(STREAM, "g", "0-0")
            await store.read_group(b"1-0")
            store.native.give_back(STREAM, "g", b"2-0", [b"3-0", b"4-0", b"5-0"])
            read, _ = await store.read_group(b"3-0", 1)
            assert read == [b"3-0"]
            (group,) = client.xinfo_groups(STREAM)
            assert (group["pending"], group["lag"]) == (3, 2)

    async def test_a_group_goes_on_from_where_it_is_set_to(
        self, server: RedisServer, client: Any
    ) -> None:
        async with opened(server) as store:

            def move(first: str, before: str) -> Any:
                words = (STREAM, "g", first.encode(), before.encode())
                return store.reply(store.native.move_group, *words)

            assert str(await move("1-0", "0-1")).startswith("NOGROUP")
            for number in range(1, 6):
                client.xadd(STREAM, {"n": number}, id=f"{number}-0")
            client.xgroup_create(STREAM, "g", "0-0")
            await store.read_group(b"1-0", 3)
            assert await move("3-5", "3-4") == 0  # nothing is in between
            (group,) = client.xinfo_groups(STREAM)
            assert (group["entries-read"], group["lag"]) == (3, 2)
            assert await move("2-0", "1-9") == 1
            assert (await store.read_group(b"2-0", 1))[0] == [b"2-0"]
            assert await move("5-0", "4-9") == 1
            assert (await store.read_group(b"5-0", 9))[0] == [b"5-0"]
            assert await move("9-0", "8-9") == 0
            client.delete(STREAM)
            assert str(await move("1-0", "0-1")).startswith("NOGROUP")

    async def test_a_commit_acknowledges_what_is_below_it(
        self, server: RedisServer, client: Any
    ) -> None:
        async with opened(server) as store:
            for number in range(1, 1202):
                client.xadd(STREAM, {"n": number}, id=f"{number}-0")
            client.xgroup_create(STREAM, "g", "0-0")
            await store.read_group(b"1-0", 2000)
            store.native.acknowledge(STREAM, "g", b"1199-18446744073709551615", is_read=True)
            await store.native.members("g")  # through another connection
            await until(lambda: client.xpending(STREAM, "g")["pending"] == 2)
            assert client.xpending(STREAM, "g")["min"] == b"1200-0"

    async def test_pending_entries_move_to_another_member(
        self, server: RedisServer, client: Any
    ) -> None:
        async with opened(server) as store:
            for number in range(1, 701):
                client.xadd(STREAM, {"n": number}, id=f"{number}-0")
            client.xgroup_create(STREAM, "g", "0-0")
            client.xreadgroup("g", OTHER, {STREAM: ">"}, count=600)
            client.xreadgroup("g", "a-redis-application", {STREAM: ">"}, count=10)
            client.xtrim(STREAM, minid="101-0", approximate=False)  # some are gone for good

            moved = await store.reply(store.native.take_over, STREAM, "g", MEMBER)

            assert not isinstance(moved, StoreFault)
            pending = client.xpending(STREAM, "g")
            assert {one["name"]: one["pending"] for one in pending["consumers"]} == {
                MEMBER.encode(): 500,
                b"a-redis-application": 10,
            }
            assert OTHER.encode() not in [
                one["name"] for one in client.xinfo_consumers(STREAM, "g")
            ]

    async def test_consumers_go_once_nothing_is_pending(
        self, server: RedisServer, client: Any
    ) -> None:
        async with opened(server) as store:
            client.xadd(STREAM, {"n": 1}, id="1-0")
            client.xgroup_create(STREAM, "g", "0-0")
            client.xreadgroup("g", MEMBER, {STREAM: ">"})
            client.xgroup_createconsumer(STREAM, "g", OTHER)
            assert await store.native.remove_consumers(STREAM, "g", [MEMBER, OTHER]) == 1
            assert [one["name"] for one in client.xinfo_consumers(STREAM, "g")] == [MEMBER.encode()]
            client.xack(STREAM, "g", "1-0")
            assert await store.native.remove_consumers(STREAM, "g", [MEMBER]) == 0
            assert client.xinfo_consumers(STREAM, "g") == []
            assert await store.native.remove_consumers(STREAM, "unknown", [MEMBER]) == 0

    async def test_what_redis_knows_of_a_group(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            assert await store.native.group_facts(STREAM, "g") is None
            client.xadd(STREAM, {"n": 1}, id="1-0")
            client.xadd(STREAM, {"n": 2}, id="2-0")
            client.xgroup_create(STREAM, "g", "0-0")
            client.xreadgroup("g", "c", {STREAM: ">"})
            assert await store.native.group_facts(STREAM, "g") == (b"2-0", b"1-0")
            client.xack(STREAM, "g", "1-0", "2-0")
            assert await store.native.group_facts(STREAM, "g") == (b"2-0", None)
            await store.native.destroy_group(STREAM, "g")
            await store.native.destroy_group(STREAM, "g")
            client.delete(STREAM)
            assert await store.native.group_facts(STREAM, "g") is None
            await store.native.destroy_group(STREAM, "g")
