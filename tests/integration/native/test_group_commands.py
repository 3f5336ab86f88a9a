"""The Redis commands that a Kafka group causes on the stream of a native topic."""

from tests.support.brokers.native import Native, fetched_offset, group_commands, offset_of
from tests.support.brokers.running import wait_until
from tests.support.stores.monitor import Monitor


class TestCommands:
    def test_a_new_group_from_the_beginning(self, topic: Native, group: str) -> None:
        first, *_, last = topic.add(1, 2, 3)
        with Monitor(topic.broker.store_url) as monitor, topic.member(group) as member:
            assert member.read(3) == [b"1", b"2", b"3"]
            assert topic.pending(group) == {member.member_id: 3}
            member.commit()
            topic.wait_for_pending(group, 0)

        key = topic.key()
        created, read, acknowledged, *rest = group_commands(monitor, topic, group)
        words = created.split(" ")
        assert words[:4] == ["XGROUP", "CREATE", key, group]
        assert words[5:] == ["MKSTREAM"]
        assert offset_of(words[4].encode()) <= offset_of(first)
        assert read == f"XREADGROUP GROUP {group} <member> STREAMS {key} >"
        ack = f"FCALL moldau_acknowledge 1 {key} {group} {last.decode()} 1"
        assert ack in (acknowledged, *rest)
        assert set(rest) <= {read, ack, f"FCALL moldau_remove_consumers 1 {key} {group} <member>"}

    def test_a_new_group_from_the_end(self, topic: Native, group: str) -> None:
        *_, last = topic.add(1, 2, 3)
        latest = {"auto_offset_reset": "latest"}
        with (
            Monitor(topic.broker.store_url) as monitor,
            topic.member(group, **latest) as member,
        ):
            wait_until(lambda: bool(member.poll(0.05) or topic.group(group)), 30, "is made")
            (four,) = topic.add(4)
            assert member.read(1) == [b"4"]
            assert topic.pending(group) == {member.member_id: 1}
            member.commit()

        key = topic.key()
        created, read, *_ = group_commands(monitor, topic, group)
        assert created == f"XGROUP CREATE {key} {group} {last.decode()} MKSTREAM"
        assert read == f"XREADGROUP GROUP {group} <member> STREAMS {key} >"
        facts = topic.group(group)
        assert facts is not None
        assert (facts["pending"], facts["lag"], facts["last-delivered-id"]) == (0, 0, four)

    def test_a_group_that_has_committed(self, topic: Native, group: str) -> None:
        topic.add(1, 2, 3)
        with topic.member(group) as member:
            member.read(3)
            member.commit()
        wait_until(lambda: topic.consumers(group) == [], 30, "its consumer is gone")
        topic.add(4)

        with Monitor(topic.broker.store_url) as monitor, topic.member(group) as member:
            assert member.read(1) == [b"4"]
            assert topic.pending(group) == {member.member_id: 1}

        key = topic.key()
        sent = group_commands(monitor, topic, group)
        assert sent[0].startswith(f"XGROUP CREATE {key} {group} ")  # BUSYGROUP
        assert sent[1] == f"FCALL moldau_take_over 1 {key} {group} <member>"
        assert sent[2].startswith(f"FCALL moldau_move 1 {key} {group} ")  # it stands there already
        assert sent[3] == f"XREADGROUP GROUP {group} <member> STREAMS {key} >"

    def test_joining_creates_nothing(self, topic: Native, group: str) -> None:
        topic.add(1)
        with Monitor(topic.broker.store_url) as monitor:
            assert fetched_offset(topic, group) == -1
            with topic.member(group) as member:
                member.join_only()
                assert topic.store.xinfo_groups(topic.key()) == []

        # And when it leaves there is nothing to be found.
        gone = f"FCALL moldau_remove_consumers 1 {topic.key()} {group} <member>"
        assert set(group_commands(monitor, topic, group)) <= {gone}
        assert topic.store.xinfo_groups(topic.key()) == []

    def test_what_is_read_without_a_group_leaves_no_trace(self, topic: Native) -> None:
        topic.add(1, 2)
        with topic.member("") as member:
            member.assign_only(0)
            assert member.read(2) == [b"1", b"2"]
        assert topic.store.xinfo_groups(topic.key()) == []
