"""Kafka groups as Redis users see them: what is done to a stream, and what it shows then."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from tests.support.brokers.native import QUICK, Native, fetched_offset, group_commands, offset_of
from tests.support.brokers.running import Broker, clean_environment, wait_until
from tests.support.raw.group import coordinator_port
from tests.support.stores.monitor import Monitor


class TestDelivery:
    def test_a_restarted_broker_goes_on(
        self, start_moldau: Callable[..., Broker], group: str
    ) -> None:
        first = start_moldau(workers=2, broker=QUICK)
        topic = Native(first)
        topic.add(1, 2, 3)
        with topic.member(group) as member:
            assert member.read(3) == [b"1", b"2", b"3"]
            member.commit()
            facts = topic.group(group)
            topic.close()
            first.stop()
            again = start_moldau(workers=2, broker=QUICK, port=first.port, data_dir=first.data_dir)
            topic.broker = again
            topic.store = topic.connect()
            assert topic.group(group) == facts
            with Monitor(again.store_url) as monitor:
                topic.add(4)
                assert member.read(1) == [b"4"]
            sent = group_commands(monitor, topic, group)
            # BUSYGROUP: the client may have fetched before the monitor was there.
            assert topic.store.info("commandstats")["cmdstat_xgroup|create"]["failed_calls"] >= 1
            assert f"XREADGROUP GROUP {group} <member> STREAMS {topic.key()} >" in sent
            member.commit()
            topic.wait_for_pending(group, 0)
        topic.close()

    def test_a_member_that_crashed(self, topic: Native, group: str, tmp_path: Path) -> None:
        ids = topic.add(*range(100))
        with topic.member(group) as member:
            member.read(10)
            member.commit_at(offset_of(ids[9]))  # 0 to 8 are done with
        crashed = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.native.native_reader", topic.broker.bootstrap]
            + [group, topic.name],
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        assert crashed.stdout is not None
        read = [crashed.stdout.readline().strip() for _ in range(91)]
        assert read == [str(number) for number in range(9, 100)]
        (name,) = topic.pending(group)
        assert topic.pending(group) == {name: 91}
        crashed.kill()
        crashed.wait()
        crashed.stdout.close()

        with topic.member(group) as member:
            assert member.read(91) == [b"%d" % number for number in range(9, 100)]
            assert topic.pending(group) == {member.member_id: 91}
            assert topic.consumers(group) == [member.member_id]
            member.commit()
            topic.wait_for_pending(group, 0)

    def test_seek_back_and_forth(self, topic: Native, group: str) -> None:
        ids = topic.add(*range(20))
        with topic.member(group) as member:
            assert member.read(20) == [b"%d" % number for number in range(20)]
            for at in (3, 17, 0, 19, 10):
                member.seek(offset_of(ids[at]))
                assert member.read(20 - at) == [b"%d" % number for number in range(at, 20)]
            facts = topic.group(group)
            assert facts is not None
            assert facts["last-delivered-id"] == ids[-1]
            topic.add(20)
            assert member.read(1) == [b"20"]
            member.commit()
            topic.wait_for_pending(group, 0)
            facts = topic.group(group)
            assert facts is not None
            assert facts["lag"] == 0

    def test_a_commit_of_less_than_was_read(self, topic: Native, group: str) -> None:
        ids = topic.add(*range(10))
        with topic.member(group) as member:
            member.read(10)
            member.commit_at(offset_of(ids[6]))
            topic.wait_for_pending(group, 4)
            assert topic.store.xpending(topic.key(), group)["min"] == ids[6]

    def test_an_offset_set_back_by_an_operator(self, topic: Native, group: str) -> None:
        ids = topic.add(*range(10))
        with topic.member(group) as member:
            member.read(10)
            member.commit()
        place = TopicPartition(topic.name, 0, offset_of(ids[4]))
        change = [ConsumerGroupTopicPartitions(group, [place])]
        topic.admin.alter_consumer_group_offsets(change)[group].result()

        with topic.member(group) as member:
            assert member.read(6) == [b"%d" % number for number in range(4, 10)]
            assert topic.pending(group) == {member.member_id: 6}
            member.commit()
            topic.wait_for_pending(group, 0)

    def test_two_groups_with_one_client_id(self, topic: Native, group: str) -> None:
        other = group + "-2"
        topic.add(*range(10))
        settings = {"client_id": "the-same"}
        with topic.member(group, **settings) as one:
            one.read(10)
            with topic.member(other, **settings) as two:
                assert two.read(10) == [b"%d" % number for number in range(10)]
                topic.add(*range(10, 20))
                assert one.read(10) == two.read(10) == [b"%d" % n for n in range(10, 20)]
                assert topic.group(other) is None  # nothing is marked where it is not certain
                one.commit()
                two.commit()
                topic.wait_for_pending(group, 0)

    def test_a_client_with_the_members_client_id_that_is_in_no_group(
        self, topic: Native, group: str
    ) -> None:
        wanted = [b"%d" % number for number in range(200)]
        topic.add(*range(100))
        with topic.member(group, client_id="shared") as member:
            assert member.read(50) == wanted[:50]
            with topic.member("", client_id="shared") as other:
                other.assign_only(0)
                assert other.read(30) == wanted[:30]
                topic.add(*range(100, 200))
                assert member.read(150) == wanted[50:]
                assert other.read(170) == wanted[30:]
            member.commit()
            topic.wait_for_pending(group, 0)

    def test_a_rebalance_moves_pending_entries(self, broker: Broker, group: str) -> None:
        topic = Native(broker, 2)
        for partition in range(2):
            topic.add(*range(10), partition=partition)
        with topic.member(group) as one:
            one.read(20)
            before = {one.member_id: 10}
            assert [topic.pending(group, at) for at in range(2)] == [before, before]
            with topic.member(group) as two:
                got: list[bytes] = []

                def both_go_on() -> bool:
                    one.poll(0.02)
                    got.extend(two.poll(0.02))
                    return len(got) == 10

                wait_until(both_go_on, 30, "the other has read")
                assert got == [b"%d" % number for number in range(10)]
                (moved,) = two.assigned()
                assert topic.pending(group, moved) == {two.member_id: 10}
                assert topic.consumers(group, moved) == [two.member_id]
                two.commit()
                topic.wait_for_pending(group, 0, moved)
        topic.close()

    def test_who_leaves_is_no_consumer_once_nothing_is_pending(
        self, topic: Native, group: str
    ) -> None:
        ids = topic.add(1, 2, 3)
        with topic.member(group) as member:
            member.read(3)
            member.commit()
            assert topic.consumers(group) == [member.member_id]
        wait_until(lambda: topic.consumers(group) == [], 30, "its consumer is gone")
        topic.add(4)
        with topic.member(group) as member:
            member.read(1)
            name = member.member_id
        assert topic.consumers(group) == [name]  # 4 is pending

        end = TopicPartition(topic.name, 0, offset_of(ids[-1]) + (1 << 30))
        change = [ConsumerGroupTopicPartitions(group, [end])]
        topic.admin.alter_consumer_group_offsets(change)[group].result()

        wait_until(lambda: topic.consumers(group) == [], 30, "its consumer is gone")

    def test_a_deleted_group_is_gone_from_the_stream(self, topic: Native, group: str) -> None:
        topic.add(1)
        with topic.member(group) as member:
            member.read(1)
            member.commit()
        topic.admin.delete_consumer_groups([group])[group].result()

        wait_until(lambda: topic.group(group) is None, 30, "it is gone")

    def test_a_group_that_only_redis_knows(self, topic: Native, group: str) -> None:
        ids = topic.add(*range(6))
        topic.store.xgroup_create(topic.key(), group, "0")
        assert fetched_offset(topic, group) == 0
        topic.store.xreadgroup(group, "app", {topic.key(): ">"}, count=4)
        topic.store.xack(topic.key(), group, ids[0])
        assert fetched_offset(topic, group) == offset_of(ids[1])
        topic.store.xack(topic.key(), group, *ids[1:4])
        assert fetched_offset(topic, group) == offset_of(ids[3]) + 1

        with topic.member(group, auto_offset_reset="latest") as member:
            assert member.read(2) == [b"4", b"5"]
            assert topic.pending(group) == {member.member_id: 2}
            member.commit()
            topic.wait_for_pending(group, 0)
        assert fetched_offset(topic, group) == offset_of(ids[5]) + 1

    def test_a_redis_consumer_of_the_same_group_keeps_what_is_its_own(
        self, topic: Native, group: str
    ) -> None:
        ids = topic.add(*range(5))
        topic.store.xgroup_create(topic.key(), group, "0")
        topic.store.xreadgroup(group, "app", {topic.key(): ">"}, count=2)

        with topic.member(group) as member:
            assert member.read(5) == [b"%d" % number for number in range(5)]

        assert offset_of(ids[0]) > 0
        assert "app" in topic.consumers(group)

    def test_a_group_destroyed_in_redis_is_made_again(self, topic: Native, group: str) -> None:
        topic.add(1, 2)
        with topic.member(group) as member:
            assert member.read(2) == [b"1", b"2"]
            topic.store.xgroup_destroy(topic.key(), group)
            topic.add(3)
            assert member.read(1) == [b"3"]
            assert topic.pending(group) == {member.member_id: 1}
            member.commit()
            topic.wait_for_pending(group, 0)

    def test_a_stream_deleted_in_redis_goes_on_with_what_comes(
        self, topic: Native, group: str
    ) -> None:
        topic.add(1, 2)
        with topic.member(group) as member:
            assert member.read(2) == [b"1", b"2"]
            topic.store.delete(topic.key())
            topic.add(3)
            assert member.read(1) == [b"3"]

    def test_entries_that_do_not_fit(self, topic: Native, group: str) -> None:
        pipe = topic.store.pipeline(transaction=True)
        for number in range(5000):
            pipe.xadd(topic.key(), {"value": number}, id=f"1700000000000-{number}")
        pipe.execute()
        topic.add("last")
        wanted = [b"%d" % number for number in range(5000)] + [b"last"]
        with topic.member(group) as member:
            assert member.read(1700) == wanted[:1700]
            member.commit()
        with topic.member(group, max_partition_fetch_bytes=20_000) as member:
            assert member.read(3301) == wanted[1700:]
            member.commit()
            topic.wait_for_pending(group, 0)
            topic.add("new")
            assert member.read(1) == [b"new"]
            assert topic.pending(group) == {member.member_id: 1}

    def test_small_fetches_give_back_what_does_not_fit(self, topic: Native, group: str) -> None:
        topic.add(*(str(number) * 400 for number in range(10, 80)))
        settings = {"max_partition_fetch_bytes": 2_000, "fetch_max_bytes": 2_000}
        settings |= {"message_max_bytes": 2_000}
        with topic.member(group, **settings) as member:
            assert [one[:2] for one in member.read(70)] == [b"%d" % n for n in range(10, 80)]
            member.commit()
            topic.wait_for_pending(group, 0)
            facts = topic.group(group)
            assert facts is not None
            assert facts["lag"] == 0


def test_a_worker_that_loads_the_group_saves_its_members_again(topic: Native, group: str) -> None:
    """Its predecessor may have died between storing the group and telling who reads."""
    topic.add(1)
    with topic.member(group) as member:
        assert member.read(1) == [b"1"]
        assert topic.store.hexists("moldau:members", group)
        owner = coordinator_port(topic.broker, group) - topic.broker.port - 1
        topic.store.hdel("moldau:members", group)
        old = topic.broker.kill("worker", owner)
        topic.broker.wait_restarted("worker", owner, old)
        wait_until(
            lambda: topic.store.hexists("moldau:members", group), 20, "the members are saved"
        )
