"""The functions of native topics in the store: one step each, whoever else writes the stream."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from broker.errors import StoreFault, StoreRefused
from broker.store import keys
from broker.store.native import Expected, NativeStreams, RawEntries
from broker.store.native_steps import AT_ONCE
from broker.store.pipe import Pipe
from broker.store.target import Target
from ops.serve.embedded_store import server_binary
from tests.support.redis_server import SEARCH_PATH, RedisServer, running_redis

STREAM, BASE = b"moldau:t:0", b"moldau:t:0"
MEMBER = "app-6f0f1dd7-9bd6-4d2c-a3b6-0f0f0f0f0f0f"
OTHER = "app-00000000-0000-4000-8000-000000000000"

SERVERS = {"valkey": str(server_binary())}
if installed := shutil.which("redis-server", path=SEARCH_PATH):
    SERVERS["redis"] = installed


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    program = SERVERS[request.param]
    with running_redis(tmp_path_factory.mktemp("store"), program=program) as started:
        yield started


@pytest.fixture
def client(server: RedisServer) -> Iterator[Any]:
    with redis.from_url(server.url) as connected:
        connected.flushall()
        yield connected


class Store:
    """The commands, as coroutines."""

    def __init__(self, native: NativeStreams) -> None:
        self.native = native

    async def append(
        self,
        *values: bytes,
        producer: tuple[int, int, int] = (-1, -1, 0),
        bits: int = 10,
        least: tuple[int, int] = (0, 0),
    ) -> tuple[bytes, ...] | StoreFault:
        words: list[bytes | int] = [(1 << bits) - 1, *least, *producer, len(values), b"vt"]
        for value in values:
            words += (value, b"1700000000000")
        done: asyncio.Future[tuple[bytes, ...] | StoreFault] = asyncio.Future()
        self.native.append(STREAM, BASE, words, done.set_result)
        return await done

    async def read_group(
        self, first: bytes, count: int = 100, limit: int = 1 << 20
    ) -> tuple[list[bytes], Expected]:
        done: asyncio.Future[tuple[Any, Any]] = asyncio.Future()

        def finish(entries: RawEntries | StoreFault, expected: Expected | StoreFault) -> None:
            done.set_result((entries, expected))

        self.native.read_group(STREAM, BASE, "g", MEMBER, first, count, limit, finish)
        entries, expected = await done
        assert not isinstance(entries, StoreFault), entries
        return [raw for raw, _ in entries], expected

    async def told(self, ask: Callable[..., None], *words: Any) -> Any:
        done: asyncio.Future[Any] = asyncio.Future()
        ask(*words, done.set_result)
        return await done


@asynccontextmanager
async def opened(server: RedisServer) -> AsyncIterator[Store]:
    pipes = [Pipe(Target(server.url), name) for name in ("bulk", "reads", "control", "groups")]
    for pipe in pipes:
        await pipe.connect()
    native = NativeStreams(*pipes)
    try:
        await native.create(STREAM, BASE)
        yield Store(native)
    finally:
        for pipe in pipes:
            pipe.close()


def ids(client: Any) -> list[tuple[int, int]]:
    return [_id(raw) for raw, _ in client.xrange(STREAM)]


def values(client: Any) -> list[bytes]:
    return [fields.get(b"value", b"") for _, fields in client.xrange(STREAM)]


def _id(raw: bytes) -> tuple[int, int]:
    ms, _, seq = raw.partition(b"-")
    return int(ms), int(seq)


def following(one: tuple[int, int], bits: int = 10) -> tuple[int, int]:
    ms, seq = one
    return (ms, seq + 1) if seq + 1 < 1 << bits else (ms + 1, 0)


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
                fields[b"value"]: _id(raw) for raw, fields in everything if b"value" in fields
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

    async def test_a_group_goes_on_from_where_it_is_told_to(
        self, server: RedisServer, client: Any
    ) -> None:
        async with opened(server) as store:

            def move(first: str, before: str) -> Any:
                words = (STREAM, "g", first.encode(), before.encode())
                return store.told(store.native.move_group, *words)

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
            await _until(lambda: client.xpending(STREAM, "g")["pending"] == 2)
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

            moved = await store.told(store.native.take_over, STREAM, "g", MEMBER)

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


class TestTheStream:
    async def test_creation_leaves_an_empty_stream(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            await asyncio.gather(*(store.native.create(b"moldau:new:0", b"b") for _ in range(5)))
            assert client.type("moldau:new:0") == b"stream"
            assert client.xinfo_groups("moldau:new:0") == []

    async def test_where_it_begins_and_ends(self, server: RedisServer, client: Any) -> None:
        async with opened(server) as store:
            native = store.native
            assert await store.told(native.bounds, STREAM, BASE) == (0, b"", b"0-0", 0, 0)
            client.xadd(STREAM, {"n": 1}, id="5-1")
            client.xadd(STREAM, {"n": 2}, id="5-2")
            await native.add_marks(BASE, [b"m1", b"m2"])
            await native.set_start(BASE, 1 << 62)
            bounds = await store.told(native.bounds, STREAM, BASE)
            assert bounds == (2, b"5-1", b"5-2", 2, 1 << 62)
            assert await native.last_before(STREAM, b"5-2") == b"5-1"
            assert await native.last_before(STREAM, b"5-1") is None
            client.delete(STREAM)
            assert (await store.told(native.bounds, STREAM, BASE))[:3] == (0, b"", b"0-0")
            client.set(STREAM, "text")
            assert isinstance(await store.told(native.bounds, STREAM, BASE), StoreRefused)
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


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_many_entries_are_read_in_steps(server: RedisServer, client: Any) -> None:
    async with opened(server) as store:
        _add(client, 300, b"small")
        client.xgroup_create(STREAM, "g", "0")
        read, expected = await store.read_group(b"1-0", 1_000)
        assert read == [b"%d-0" % ms for ms in range(1, 301)]
        assert expected == (b"1-0", 0)
        read, expected = await store.read_group(b"301-0", 1_000)
        assert (read, expected) == ([], (None, 0))


@pytest.mark.parametrize("small", [0, AT_ONCE + 36])
async def test_large_entries_end_a_read(server: RedisServer, client: Any, small: int) -> None:
    async with opened(server) as store:
        _add(client, small, b"small")
        _add(client, 300, bytes(10_000), small + 1)
        client.xgroup_create(STREAM, "g", "0")
        read, _ = await store.read_group(b"1-0", 1_000, 50_000)
        assert small < len(read) <= small + AT_ONCE

        def finish(marks: int | StoreFault, entries: RawEntries | StoreFault) -> None:
            plain.set_result(entries)

        plain: asyncio.Future[Any] = asyncio.Future()
        store.native.read(STREAM, BASE, b"1-0", 1_000, 50_000, finish)
        assert [raw for raw, _ in await plain] == read


async def test_somebody_else_who_reads_for_the_group_between_two_steps(
    server: RedisServer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No gap: what was read before is delivered, and the group stands behind it."""

    async with opened(server) as store:
        _add(client, 3 * AT_ONCE, b"small")
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


def _add(client: Any, count: int, value: bytes, first: int = 1) -> None:
    with client.pipeline(transaction=False) as pipe:
        for ms in range(first, first + count):
            pipe.xadd(STREAM, {"value": value}, id=f"{ms}-0")
        pipe.execute()
