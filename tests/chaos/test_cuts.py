"""Connections to the store that break in the middle of appends, in every way a network has.

Cut within a command; cut before the reply; the reply cut in two; bytes that arrive long after their
sender gave up; replies that come late, or never. The proof is the same as ever (proof.py); records
that look all alike are counted, so that only the nonce can tell them apart.
"""

import asyncio
import random
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from moldau.broker.errors import StoreFault
from moldau.broker.log.partition import PartitionLog
from tests.support.brokers.running import Broker, wait_until
from tests.support.drivers.log_host import Host, append, begin, stored, until
from tests.support.proofs.hammer import Orders, Report, Sent, hammers, worker_ports
from tests.support.proofs.proof import Follower, prove, prove_partition, stored_by
from tests.support.raw.calls import create_topic
from tests.support.raw.client import RawClient, make_batch
from tests.support.stores.proxy import Link, ProxyThread, StoreProxy
from tests.support.stores.redis_server import RedisServer, running_redis

_names = (f"cut-{number}" for number in count())
PATIENCE_S = 60.0


class Faults:
    """Gives each connection a fate, and counts them."""

    def __init__(self, seed: int, most_bytes: int, *, silence: bool) -> None:
        self._random = random.Random(seed)
        self._most_bytes = most_bytes
        self._fates: list[Callable[[Link, int], None]] = [
            self.cut_request,
            self.cut_before_reply,
            self.cut_reply,
            self.deliver_late,
            self.reply_late,
        ]
        if silence:
            self._fates.append(self.never_reply)
        self.happened: dict[str, int] = {}
        self.calm = False

    @property
    def count(self) -> int:
        return sum(self.happened.values())

    def __call__(self, link: Link) -> None:
        if not self.calm:
            # Beyond the greeting mostly: a connection that never comes up tests little.
            after = 200 + int(self._random.random() ** 2 * self._most_bytes)
            self._random.choice(self._fates)(link, after)

    def _note(self, what: str) -> bool:
        if self.calm:
            return False
        self.happened[what] = self.happened.get(what, 0) + 1
        return True

    def cut_request(self, link: Link, after: int) -> None:
        """Cut in the middle of a command."""

        def then() -> None:
            if self._note("request cut"):
                link.cut()
            else:
                link.requests.release()

        link.requests.stop_after(after, then)

    def cut_before_reply(self, link: Link, after: int) -> None:
        """The command is carried out; its reply is lost."""

        def then() -> None:
            link.replies.hold()
            link.requests.release()
            asyncio.get_running_loop().call_later(0.02, self._cut_or_go_on, link, "reply lost")

        link.requests.stop_after(after, then)

    def _cut_or_go_on(self, link: Link, what: str) -> None:
        if self._note(what):
            link.cut()
        else:
            link.replies.release()

    def cut_reply(self, link: Link, after: int) -> None:
        """Cut in the middle of a reply, or between two."""
        # There is far less to read than to write.
        link.replies.stop_after(60 + after // 40, lambda: self._cut_or_go_on(link, "reply cut"))

    def deliver_late(self, link: Link, after: int) -> None:
        """The sender sees a lost connection; what it had sent arrives all the same, later."""

        def then() -> None:
            if not self._note("delivered late"):
                link.requests.release()
                return
            link.cut_client()
            delay = self._random.choice([0.0, 0.01, 0.06, 0.1, 0.3])
            asyncio.get_running_loop().call_later(delay, link.requests.release)

        link.requests.stop_after(after, then)

    def reply_late(self, link: Link, after: int) -> None:
        def then() -> None:
            self._note("reply late")
            delay = self._random.uniform(0, 0.3)
            asyncio.get_running_loop().call_later(delay, release)

        def release() -> None:
            link.replies.release()
            self(link)  # it lives on, until something else happens to it

        link.replies.stop_after(60 + after // 40, then)

    def never_reply(self, link: Link, after: int) -> None:
        """Half open: only silence tells."""

        def then() -> None:
            if not self._note("silence"):
                link.replies.release()

        link.replies.stop_after(60 + after // 40, then)


# --- logs without a server: fast, and silence can be short ---


class Writer:
    """Appends through a log of its own until stopped; idempotent ones send again."""

    def __init__(self, name: str, number: int, *, idempotent: bool, identical: bool) -> None:
        self.report = Report(name, idempotent, identical, [])
        self._number = number
        self._random = random.Random(number)
        self._next = 0

    def _batch(self) -> tuple[Sent, bytearray]:
        report = self.report
        count = 2 if report.identical else self._random.randint(1, 4)
        sent = Sent(0, self._next, count)
        self._next += count
        report.sent.append(sent)
        size = 50 if report.identical else self._random.choice([10, 100, 3_000])
        values: list[tuple[None, bytes, int]] = []
        for extra in range(count):
            name = "same" if report.identical else f"{report.name}:{sent.first + extra}"
            values.append((None, f"{name}|{'x' * size}".encode(), 1))
        return sent, make_batch(
            values,
            producer_id=self._number if report.idempotent else -1,
            producer_epoch=0 if report.idempotent else -1,
            base_sequence=sent.first if report.idempotent else -1,
        )

    async def run(self, log: PartitionLog, until: Callable[[], bool]) -> None:
        while not until():
            batches = [self._batch() for _ in range(self._random.randint(1, 5))]
            outcomes = [begin(log, batch).outcome for _, batch in batches]
            for (sent, batch), outcome in zip(batches, outcomes, strict=True):
                try:
                    sent.offset = await outcome
                except StoreFault as fault:
                    name = type(fault).__name__
                    self.report.refusals[name] = self.report.refusals.get(name, 0) + 1
                    if self.report.idempotent:
                        await self._insist(log, sent, batch)
                # Out of order, because one before it failed: sent again, like that one.
                except Exception:
                    if not self.report.idempotent:
                        raise
                    await self._insist(log, sent, batch)

    async def _insist(self, log: PartitionLog, sent: Sent, batch: bytearray) -> None:
        while sent.offset < 0:
            try:
                sent.offset = await append(log, batch)
            except StoreFault:
                await asyncio.sleep(0.01)


async def cut_and_prove(server: RedisServer, seed: int, seconds: float, enough: int) -> None:
    """Cut connections for so long, until so many faults have happened; prove the log."""
    topic = next(_names)
    faults = Faults(seed, 60_000, silence=True)
    async with StoreProxy(server.port) as proxy, Host(server.url) as judge:
        log = await judge.create(topic)
        proxy.on_link = faults
        kinds = [(True, False), (False, False), (False, True), (False, True)]
        writers = [
            Writer(f"w{number}", 1 + number, idempotent=idempotent, identical=identical)
            for number, (idempotent, identical) in enumerate(kinds)
        ]
        hosts = [Host(proxy.url, writer.report.name, stall_after=0.4) for writer in writers]
        for host in hosts:
            await enter(host)

        def acknowledged() -> int:
            return sum(sent.offset >= 0 for writer in writers for sent in writer.report.sent)

        work = [
            asyncio.ensure_future(writer.run(host.log(topic), lambda: faults.calm))
            for writer, host in zip(writers, hosts, strict=True)
        ]
        await asyncio.sleep(seconds)
        await until(lambda: faults.count > enough and acknowledged() > 50, PATIENCE_S)
        faults.calm = True
        async with asyncio.timeout(60):
            await asyncio.gather(*work)
        for host in hosts:
            await host.__aexit__(None, None, None)
        values = stored_by(await stored(judge, log))
        prove_partition(0, values, [writer.report for writer in writers])


async def enter(host: Host) -> None:
    """Connect, however often the first attempt is cut."""
    async with asyncio.timeout(30):
        while True:
            try:
                await host.__aenter__()
            except StoreFault:
                await asyncio.sleep(0.01)
            else:
                return


@pytest.mark.parametrize("seed", range(2))
async def test_logs_over_connections_that_break(server: RedisServer, seed: int) -> None:
    await cut_and_prove(server, seed, 6.0, 20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 112))
async def test_logs_over_connections_that_break_for_long(server: RedisServer, seed: int) -> None:
    await cut_and_prove(server, seed, 30.0, 100)


# --- whole workers behind such a network ---


def test_workers_over_connections_that_break(
    tmp_path: Path, start_moldau: Callable[..., Broker]
) -> None:
    faults = Faults(7, 400_000, silence=False)
    faults.calm = True  # until it is up
    with (
        running_redis(tmp_path / "store") as server,
        ProxyThread(server.port, faults) as proxy,
    ):
        broker = start_moldau(
            workers=3, redis=f"redis://127.0.0.1:{proxy.port}", snapshot_entries=50
        )
        ports = worker_ports(broker)
        topic = next(_names)
        with RawClient(ports[0]) as client:
            create_topic(client, topic, partitions=2)
        followers = [Follower(port, topic, 0) for port in ports]
        pids = broker.pids("worker")
        orders = [
            Orders("switching", switch_every=7, seconds=90, most_bytes=500),
            Orders("idempotent", seconds=90),
            Orders("plain", idempotent=False, seconds=90),
            Orders("same-1", idempotent=False, identical=True, most_bytes=50, seconds=90),
            Orders("same-2", idempotent=False, identical=True, most_bytes=50, seconds=90),
        ]
        with hammers(orders, ports, topic, 2) as processes:
            proxy.call(lambda: begin_faults(proxy, faults))
            time.sleep(12)
            wait_until(lambda: faults.count > 20, PATIENCE_S, "enough faults")
            faults.calm = True
            for process in processes:
                process.stop()
            reports = [process.report() for process in processes]
        assert prove(ports, topic, range(2), reports, followers) > 100
        assert broker.pids("worker") == pids  # none had to be started again
        assert "Traceback" not in broker.log()
        broker.stop()


def begin_faults(proxy: ProxyThread, faults: Faults) -> None:
    faults.calm = False
    for link in proxy.links():
        faults(link)
