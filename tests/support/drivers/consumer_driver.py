"""A group of the consumer protocol in virtual time: members by name, topics, a dict as the store.

g = ConsumerDriver(orders=6)
g.heartbeat("a", topics=["orders"])          # joins: epoch 0, and learns its epoch
g.sleep(5_000)
assert g.beat("a").answer.epoch == 1         # says nothing new

A member by name remembers what it was told: its epoch and, once `takes` says so, its partitions.
"""

from collections.abc import Collection, Iterable
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.broker.group.config import ConsumerConfig, ConsumerLimits
from moldau.broker.group.effects import HeartbeatAnswer
from moldau.broker.group.events import ConsumerHeartbeat
from moldau.broker.group.modern.group import ConsumerGroup
from moldau.broker.group.record import ConsumerRecord, decode
from moldau.broker.group.topics import TopicIdPartition
from tests.support.drivers.group_driver import GroupDriver
from tests.support.drivers.group_world import Call

Partition = tuple[str, int]


class ConsumerDriver(GroupDriver):
    def __init__(self, group_id: str = "g", *, consumer: Any = None, **topics: int) -> None:
        limits = {
            name: consumer.pop(name)
            for name in ("session_timeout_ms", "heartbeat_interval_ms", "assignment_interval_ms")
            if consumer and name in consumer
        }
        config = ConsumerConfig(limits=ConsumerLimits(**limits), **(consumer or {}))
        super().__init__(group_id, consumer=config)
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, set[Partition]] = {}
        """What a member has been assigned by the last answer it got."""
        self._beats: list[tuple[str, Call[HeartbeatAnswer]]] = []
        for name, partitions in topics.items():
            self.make_topic(name, partitions)

    # --- requests ---

    def heartbeat(  # type: ignore[override]  # the other protocol's
        self,
        name: str,
        *,
        epoch: int | None = None,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        owned: Iterable[Partition] | None = None,
        member_id: str | None = None,
        instance: str | None = None,
        rack: str | None = None,
        timeout_ms: int | None = None,
        assignor: str | None = None,
        client_id: str = "",
    ) -> Call[HeartbeatAnswer]:
        """Send a heartbeat: a join if it has `topics` or a `pattern`, and no epoch yet."""
        call: Call[HeartbeatAnswer] = self.call(f"heartbeat of {name}")
        self.listen()
        shown = self.epochs.get(name, 0) if epoch is None else epoch
        if shown == 0:
            owned = () if owned is None else owned
            timeout_ms = 60_000 if timeout_ms is None else timeout_ms
        event = ConsumerHeartbeat(
            call=call,
            member_id=name if member_id is None else member_id,
            epoch=shown,
            client_id=client_id or name,
            client_host="127.0.0.1",
            instance_id=instance,
            rack_id=rack,
            rebalance_timeout_ms=-1 if timeout_ms is None else timeout_ms,
            names=None if topics is None else tuple(topics),
            pattern=pattern,
            assignor=assignor,
            owned=None if owned is None else self.places(owned),
        )
        self._beats.append((name, call))
        self.send(event)
        self.listen()
        return call

    def beat(self, name: str, **options: Any) -> Call[HeartbeatAnswer]:
        """Send a heartbeat with what the member owns; clients send that when it has changed."""
        return self.heartbeat(name, owned=sorted(self.owned.get(name, ())), **options)

    def settle(self, *names: str, rounds: int = 6) -> None:
        """Everybody sends heartbeats until the group is at rest."""
        for _ in range(rounds):
            self.sleep(5_000)
            for name in names:
                self.beat(name)
        self.assert_state("Stable")

    def listen(self) -> None:
        """Members read the answers they got."""
        waiting = []
        for name, call in self._beats:
            if call.is_parked:
                waiting.append((name, call))
                continue
            answer = call.answer
            if answer.error is not ErrorCode.NONE:
                continue
            self.epochs[name] = answer.epoch
            if answer.assigned is not None:
                self.owned[name] = self.partitions(answer.assigned)
        self._beats = waiting

    def forget_answers(self) -> None:
        """What was answered and not read is lost."""
        self._beats = []

    # --- names and places ---

    def places(self, partitions: Iterable[Partition]) -> frozenset[TopicIdPartition]:
        return frozenset((self.topics[topic].topic_id, number) for topic, number in partitions)

    def partitions(self, places: Collection[TopicIdPartition]) -> set[Partition]:
        names = {topic.topic_id: topic.name for topic in self.topics.values()}
        return {(names.get(topic_id, "?"), number) for topic_id, number in places}

    # --- what became of it ---

    @property
    def consumers(self) -> ConsumerGroup:
        group = self.groups.by_id[self.group_id]
        assert isinstance(group, ConsumerGroup)
        return group

    @property
    def head(self) -> ConsumerRecord:
        assert self.stored is not None
        record = decode(self.stored)
        assert isinstance(record, ConsumerRecord)
        return record

    def told(self, call: Call[HeartbeatAnswer]) -> set[Partition] | None:
        """The partitions of an answer; None: it says nothing about them."""
        assert call.answer.error is ErrorCode.NONE, call.answer
        assigned = call.answer.assigned
        return None if assigned is None else self.partitions(assigned)

    def epochs_are(self, group: int, target: int | None = None) -> None:
        found = self.consumers
        assert (found.group_epoch, found.target_epoch) == (
            group,
            group if target is None else target,
        )
