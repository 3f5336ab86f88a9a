"""Appending to native streams: ids without gaps, whatever other clients write."""

import asyncio
import random
from typing import Any

from moldau.broker.errors import StoreFault, StoreRefused
from tests.support.stores.redis_server import RedisServer
from tests.unit.store.native.native_store import (
    BASE,
    STREAM,
    following,
    id_of,
    ids,
    opened,
    values,
)


class TestAppend:
    async def test_a_batch_has_ids_without_a_gap(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            outcome = await store.append(b"a", b"b", b"c")
            found = ids(client)
            assert outcome == (b"OK", b"%d" % found[0][0], b"%d" % found[0][1])
            assert found[1:] == [following(found[0]), following(following(found[0]))]
            assert values(client) == [b"a", b"b", b"c"]

    async def test_sequences_stay_within_the_bits(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            await store.append(*[b"%d" % number for number in range(20)], bits=2)
            found = ids(client)
            assert max(seq for _, seq in found) == 3
            assert found[1:] == [following(one, 2) for one in found[:-1]]

    async def test_offsets_of_twenty_bits_lose_nothing(
        self, server: RedisServer, client: Any
    ) -> None:
        async with opened(server) as store:
            least = ((1 << 42) - 9, (1 << 20) - 2)  # as an offset more than a Lua number holds
            assert await store.append(b"a", b"b", b"c", bits=20, least=least) == (
                *(b"OK", b"%d" % least[0], b"%d" % least[1]),
            )
            last = (1 << 20) - 1
            assert ids(client) == [least, (least[0], last), (least[0] + 1, 0)]
            assert await store.append(b"d", bits=20) == (b"OK", b"%d" % (least[0] + 1), b"1")

    async def test_it_goes_on_behind_what_others_wrote(
        self, server: RedisServer, client: Any
    ) -> None:
        async with opened(server) as store:
            ahead = 4_000_000_000_000
            client.xadd(STREAM, {"a": "1"}, id=f"{ahead}-5000")
            await store.append(b"mine")
            assert ids(client) == [(ahead, 5000), (ahead + 1, 0)]
            client.xadd(STREAM, {"a": "1"}, id=f"{ahead + 1}-7")
            await store.append(b"again")
            assert ids(client)[2:] == [(ahead + 1, 7), (ahead + 1, 8)]

    async def test_many_writers_at_once(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            chance = random.Random(5)
            appends = []
            for number in range(60):
                some = [b"%d.%d" % (number, one) for one in range(chance.randrange(1, 40))]
                appends.append((some, asyncio.ensure_future(store.append(*some, bits=4))))
                if chance.random() < 0.5:
                    await asyncio.to_thread(client.xadd, STREAM, {"theirs": "1"})
            await asyncio.gather(*(append for _, append in appends))
            everything = client.xrange(STREAM)
            order = [fields[b"value"] for _, fields in everything if b"value" in fields]
            assert order == [value for some, _ in appends for value in some]
            places = {
                fields[b"value"]: id_of(raw) for raw, fields in everything if b"value" in fields
            }
            for some, append in appends:
                at = [places[value] for value in some]
                assert append.result() == (b"OK", b"%d" % at[0][0], b"%d" % at[0][1])
                assert at[1:] == [following(one, 4) for one in at[:-1]]
                assert all(seq < 16 for _, seq in at)

    async def test_a_removed_topic_takes_nothing(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            await store.native.remove(STREAM, BASE)
            assert await store.append(b"late") == (b"GONE",)
            assert not client.exists(STREAM)

    async def test_a_key_that_is_no_stream(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            client.set(STREAM, "text")
            assert isinstance(await store.append(b"v", producer=(7, 0, 0)), StoreRefused)
            client.delete(STREAM)
            # Nothing was noted of the batch that was refused.
            outcome = await store.append(b"v", producer=(7, 0, 0))
            assert not isinstance(outcome, StoreFault)
            assert outcome[0] == b"OK"


class TestIdempotence:
    async def test_the_last_five_batches_are_known_again(
        self, server: RedisServer, client: Any
    ) -> None:
        async with opened(server) as store:
            outcomes = [
                await store.append(b"%d" % n, b"x", producer=(7, 0, 2 * n)) for n in range(6)
            ]
            for number in range(1, 6):
                again = await store.append(b"%d" % number, b"x", producer=(7, 0, 2 * number))
                assert again == outcomes[number]
            assert await store.append(b"0", b"x", producer=(7, 0, 0)) == (b"ORDER", b"12")
            assert client.xlen(STREAM) == 12

    async def test_the_state_is_kept_by_the_store(self, server: RedisServer, client: Any) -> None:
        outcomes = []
        for _ in ("one worker", "another"):
            async with opened(server) as store:
                outcomes.append(await store.append(b"v", producer=(7, 0, 0)))

        assert outcomes[0] == outcomes[1]
        assert values(client) == [b"v"]

    async def test_a_gap_is_refused(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            await store.append(b"a", producer=(7, 0, 0))
            assert await store.append(b"c", producer=(7, 0, 2)) == (b"ORDER", b"1")
            assert values(client) == [b"a"]

    async def test_sequences_wrap(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            most = (1 << 31) - 1
            first = await store.append(b"a", b"b", producer=(7, 0, most - 1))
            second = await store.append(b"c", b"d", producer=(7, 0, 0))
            assert await store.append(b"a", b"b", producer=(7, 0, most - 1)) == first
            assert await store.append(b"c", b"d", producer=(7, 0, 0)) == second
            assert await store.append(b"f", producer=(7, 0, 3)) == (b"ORDER", b"2")
            assert values(client) == [b"a", b"b", b"c", b"d"]

    async def test_a_batch_that_wraps_within(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            most = (1 << 31) - 1
            once = await store.append(b"a", b"b", b"c", producer=(7, 0, most))
            assert await store.append(b"a", b"b", b"c", producer=(7, 0, most)) == once
            outcome = await store.append(b"d", producer=(7, 0, 2))
            assert not isinstance(outcome, StoreFault)
            assert outcome[0] == b"OK"

    async def test_epochs(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            await store.append(b"a", producer=(7, 3, 0))
            assert await store.append(b"b", producer=(7, 2, 1)) == (b"EPOCH", b"3")
            assert await store.append(b"b", producer=(7, 4, 1)) == (b"ORDER", b"0")
            newer = await store.append(b"b", producer=(7, 4, 0))
            assert not isinstance(newer, StoreFault)
            assert newer[0] == b"OK"
            assert await store.append(b"b", producer=(7, 4, 0)) == newer
            assert values(client) == [b"a", b"b"]

    async def test_producers_do_not_meet(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            one = await store.append(b"a", producer=(7, 0, 0))
            other = await store.append(b"b", producer=(77, 0, 0))
            assert one != other
            assert sorted(await store.native.producers(BASE)) == [b"p:7", b"p:77"]
            await store.native.forget_producers(BASE, [b"p:7"])
            assert sorted(await store.native.producers(BASE)) == [b"p:77"]
