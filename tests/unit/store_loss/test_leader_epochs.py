"""The epochs that Metadata shows, of logs that are not loaded."""

from itertools import count
from typing import Any

from moldau.broker.errors import StoreFault
from moldau.broker.settings.kafka import BrokerConfig, topic_config
from moldau.broker.store import keys
from moldau.broker.store.log_integrity import EpochStore
from moldau.broker.store.topics import Change, TopicRecord, TopicStore, read_change
from moldau.broker.store_loss.epochs import Epochs
from moldau.broker.store_loss.leader_epochs import LeaderEpochs
from moldau.broker.topics.topics import Topic
from tests.support.drivers.log_host import Host, append, until
from tests.support.stores.gaps import lose_and_go_on
from tests.support.stores.redis_server import RedisServer
from tests.unit.log.log_batches import plain

_names = (f"epochs-{number}" for number in count())


def changes(store: Any) -> list[Change]:
    return [read_change(fields[b"c"]) for _, fields in store.xrange(keys.CHANGES)]


def topic_of(name: str, partitions: int = 1) -> Topic:
    record = TopicRecord(name, b"\1" * 16, partitions, 0, 0)
    return Topic(record, topic_config({}, BrokerConfig({})))


async def test_an_epoch_is_saved_announced_and_found_by_others(
    server: RedisServer, store: Any
) -> None:
    async with Host(server.url, "a") as one, Host(server.url, "b") as two:
        topic = topic_of(next(_names), 2)
        key = topic.key(1)
        assert one.leader_epochs.of_partition(topic, 1) == 0
        await one.leader_epochs.raised(topic.name, 1, key, 3)
        assert one.leader_epochs.of_partition(topic, 1) == one.leader_epochs.of(key) == 3
        assert one.leader_epochs.of_partition(topic, 0) == 0
        assert changes(store)[-1] == Change("epoch", topic.name, 1)
        assert two.leader_epochs.of(key) == 0
        await two.leader_epochs.refresh(key)
        assert two.leader_epochs.of(key) == 3
        announced = len(changes(store))
        await two.leader_epochs.raised(topic.name, 1, key, 3)
        await two.leader_epochs.raised(topic.name, 1, key, 2)
        assert len(changes(store)) == announced, "the others know it already"
        assert (await EpochStore(one.control).all())[key] == 3
        late = LeaderEpochs(EpochStore(one.control), TopicStore(one.control))
        await late.load()
        assert late.of(key) == 3


async def test_it_goes_with_its_topic(server: RedisServer, store: Any) -> None:
    async with Host(server.url) as host:
        topic = topic_of(next(_names), 2)
        topics = TopicStore(host.control)
        await topics.add(topic.record)
        await host.leader_epochs.raised(topic.name, 1, topic.key(1), 1)
        host.leader_epochs.topic_removed(topic)
        assert host.leader_epochs.of_partition(topic, 1) == 0
        assert await topics.remove(topic.record)
        assert not store.hexists(keys.EPOCHS, topic.key(1))


async def test_what_the_store_did_not_take_is_saved_when_it_is_back(
    server: RedisServer, store: Any
) -> None:
    class Down(EpochStore):
        is_down = True

        async def raise_to(self, log: bytes, epoch: int) -> bool:
            if self.is_down:
                raise StoreFault("gone")
            return await super().raise_to(log, epoch)

    async with Host(server.url) as host:
        name = next(_names)
        key = keys.stream(name, 0, 0)
        down = Down(host.control)
        epochs = LeaderEpochs(down, TopicStore(host.control))
        await epochs.raised(name, 0, key, 2)
        assert epochs.of(key) == 2
        down.is_down = False
        await epochs.load()
        assert store.hget(keys.EPOCHS, key) == b"2"
        assert changes(store)[-1] == Change("epoch", name, 0)


async def test_a_log_that_is_loaded_announces_an_epoch_that_was_not(
    server: RedisServer, store: Any
) -> None:
    """Its state was changed, then the worker died."""
    async with Host(server.url) as host:
        log = await host.create(next(_names))
        await append(log, plain(b"a", b"b"))
        assert log.leader_epoch == 0
        lose_and_go_on(store, log.key, end=1, start=1000)
        again = host.log(log.topic)
        await again.load_start()
        assert again.leader_epoch == 1
        assert again.reader.epochs == Epochs.parse(b"1:1000:1")
        await until(lambda: store.hget(keys.EPOCHS, log.key) == b"1")
        assert host.leader_epochs.of(log.key) == 1
        await until(lambda: changes(store)[-1] == Change("epoch", log.topic, 0))
