"""Retention of native topics, by time and by size."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.brokers.native import Native, offset_of
from tests.support.brokers.running import Broker, wait_until

Start = Callable[..., Broker]
QUICK = {"group.initial.rebalance.delay.ms": 0, "log.retention.check.interval.ms": 200}


@pytest.fixture
def topic(moldau: Broker) -> Iterator[Native]:
    made = Native(moldau)
    yield made
    made.close()


class TestRetention:
    def test_by_time(self, start_moldau: Start) -> None:
        topic = Native(start_moldau(workers=1, broker=QUICK), retention_ms="600000")
        now = int(time.time() * 1000)
        for number in range(250):
            topic.store.xadd(topic.key(), {"value": "old"}, id=f"{now - 3_600_000 + number}-0")
        kept = topic.add("a", "b")

        wait_until(lambda: topic.store.xlen(topic.key()) == 2, 30, "the old ones are gone")

        with topic.member("g") as member:
            assert member.read(2) == [b"a", b"b"]
            member.commit()
        # All of it goes. A group that had read it all goes on where it was, also from the end on.
        topic.store.xtrim(topic.key(), maxlen=0, approximate=False)
        topic.add("c")
        with topic.member("g", auto_offset_reset="latest") as member:
            assert member.read(1) == [b"c"]
        assert offset_of(kept[0]) > 0
        topic.close()

    def test_who_has_read_all_that_was_removed_loses_nothing(self, start_moldau: Start) -> None:
        topic = Native(start_moldau(workers=1, broker=QUICK), retention_ms="1000")
        topic.add("a", "b")
        with topic.member("g") as member:
            member.read(2)
            member.commit()
        wait_until(lambda: topic.store.xlen(topic.key()) == 0, 30, "all is gone")

        now = int(time.time() * 1000) + 3_600_000  # not to be removed before it is read
        topic.store.xadd(topic.key(), {"value": "c"}, id=f"{now}-0")

        with topic.member("g", auto_offset_reset="latest") as member:
            assert member.read(1) == [b"c"]
        topic.close()

    def test_by_size(self, start_moldau: Start) -> None:
        topic = Native(start_moldau(workers=1, broker=QUICK), retention_bytes="200000")
        for number in range(1000):
            topic.add(f"{number:04}" + "x" * 996)

        # No more than fit: a first look may have come before all were there.
        wait_until(lambda: topic.store.xlen(topic.key()) <= 200, 30, "the first ones are gone")

        left = topic.store.xlen(topic.key())
        with topic.member("g") as member:
            got = [int(value[:4]) for value in member.read(left)]
        assert got == list(range(1000 - left, 1000))
        topic.close()
