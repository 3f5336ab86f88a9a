"""When clients may ask and push, what they are answered, and what is kept of it."""

from __future__ import annotations

import itertools

import pytest

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.telemetry import instances as module
from moldau.broker.telemetry import values as values_module
from moldau.broker.telemetry.instances import Asker, Instance, Instances
from moldau.broker.telemetry.otlp import Metrics, Point
from moldau.broker.telemetry.subscriptions import Client, Subscription, Wanted
from moldau.broker.telemetry.values import Values
from moldau.broker.wire.codecs import NONE, ZSTD
from moldau.broker.wire.schema import NO_UUID

CLIENT = Client("c", "10.0.0.1", 1, "rdkafka", "2.0")
INTERVAL = 10_000
THROTTLED, INVALID = ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.INVALID_REQUEST


class World:
    def __init__(self, max_bytes: int = 1 << 20) -> None:
        ids = itertools.count(1000)
        self.instances = Instances(lambda: next(ids).to_bytes(16), max_bytes)
        self.instances.use([Subscription(frozenset({"a."}), INTERVAL)])
        self.now = 5
        self.connection = 1
        self.principal = "User:alice"

    def asker(self) -> Asker:
        return Asker(self.principal, self.connection, CLIENT)

    def ask(self, instance_id: bytes = NO_UUID) -> Instance:
        return self.instances.ask(instance_id, self.asker(), self.now)

    def check(
        self,
        instance: Instance,
        *,
        subscription_id: int | None = None,
        codec: int = ZSTD,
        size: int = 10,
        is_terminating: bool = False,
    ) -> Instance:
        if subscription_id is None:
            subscription_id = instance.subscription_id
        return self.instances.check(
            instance.instance_id,
            self.asker(),
            self.now,
            subscription_id=subscription_id,
            compression_type=codec,
            size=size,
            is_terminating=is_terminating,
        )

    def push(self, instance: Instance, **values: float) -> None:
        points = [Point(f"a.{name}", (), value, False, False) for name, value in values.items()]
        self.instances.push(instance, Metrics({"group_id": "g"}, points), 77)


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.raises(KafkaError, check=lambda error: error.code == code)


def test_a_client_without_an_id_gets_one_and_keeps_it() -> None:
    world = World()
    first = world.ask()
    assert first.instance_id not in (NO_UUID, world.ask().instance_id)
    world.now += INTERVAL
    assert world.ask(first.instance_id) is first
    assert first.wanted == Wanted(("a.",), INTERVAL)


def test_asking_again_before_the_interval_is_throttled() -> None:
    world = World()
    instance = world.ask()
    world.now += INTERVAL - 1
    with refused(THROTTLED):
        world.ask(instance.instance_id)
    world.now += 1
    world.ask(instance.instance_id)


def test_the_first_push_may_come_early_the_next_one_may_not() -> None:
    world = World()
    instance = world.ask()
    world.now += 1
    world.check(instance)
    world.now += INTERVAL - 1
    with refused(THROTTLED):
        world.check(instance)
    world.now += 1
    world.check(instance)


def test_a_push_to_another_worker_than_was_asked_is_taken() -> None:
    asked, other = World(), World()
    instance = asked.ask()
    assert other.check(instance).subscription_id == instance.subscription_id


def test_a_change_of_subscriptions_is_noticed_by_the_next_push_which_may_ask_at_once() -> None:
    world = World()
    instance = world.ask()
    before = instance.subscription_id
    world.instances.use([Subscription(frozenset({"b."}), INTERVAL)])
    with refused(ErrorCode.UNKNOWN_SUBSCRIPTION_ID):
        world.check(instance, subscription_id=before)
    again = world.ask(instance.instance_id)
    assert again.subscription_id != before
    assert again.wanted.metrics == ("b.",)
    world.check(again)
    world.now += 1
    with refused(THROTTLED):
        world.ask(instance.instance_id)


def test_what_is_wrong_with_a_push_is_said_in_kafkas_order() -> None:
    world = World(max_bytes=100)
    instance = world.ask()
    with refused(ErrorCode.UNKNOWN_SUBSCRIPTION_ID):
        world.check(instance, subscription_id=instance.subscription_id + 1, codec=9)
    world.now += INTERVAL
    with refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE):
        world.check(instance, codec=9, size=101)
    world.ask(instance.instance_id)  # at once: it has to choose another one
    with refused(ErrorCode.TELEMETRY_TOO_LARGE):
        world.check(instance, codec=NONE, size=101)
    world.now += INTERVAL
    world.check(instance, codec=NONE, size=100)


@pytest.mark.parametrize("instance_id", [NO_UUID, bytes(15) + b"\1"])
def test_a_push_needs_an_instance_id(instance_id: bytes) -> None:
    world = World()
    with refused(INVALID):
        world.check(Instance(instance_id, world.asker()), subscription_id=0)


def test_a_terminating_push_may_come_at_any_time_and_is_the_last_one() -> None:
    world = World()
    instance = world.ask()
    world.check(instance)
    world.check(instance, is_terminating=True)
    world.push(instance, x=1)
    assert world.instances.rows(world.now)[0].is_over
    world.now += INTERVAL
    with refused(INVALID):
        world.check(instance)


def test_a_client_that_reconnects_begins_again() -> None:
    world = World()
    instance = world.ask()
    world.check(instance)
    world.push(instance, x=1)
    world.connection = 2
    assert world.ask(instance.instance_id) is instance
    assert len(instance.values) == 1


def test_an_instance_id_is_of_use_only_to_its_own_user() -> None:
    world = World()
    instance = world.ask()
    world.push(instance, x=1)
    world.principal = "User:mallory"
    other = world.check(instance)
    world.push(other, x=2)
    assert [row.values[0].value for row in world.instances.rows(world.now)] == [1, 2]


def test_instances_end_three_intervals_after_their_last_request() -> None:
    world = World()
    instance = world.ask()
    world.push(instance, x=1)
    world.now += 60_000
    assert len(world.instances.rows(world.now)) == 1
    world.now += 1
    assert world.instances.rows(world.now) == []
    assert len(world.instances) == 0


def test_a_client_that_has_pushed_nothing_has_no_row() -> None:
    world = World()
    world.ask()
    assert world.instances.rows(world.now) == []


def test_there_are_so_many_clients_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CLIENTS", 3)
    world = World()
    first, *_ = [world.ask() for _ in range(3)]
    world.check(first)
    world.ask()
    assert len(world.instances) == 3
    world.push(first, x=1)  # heard of later than the others: still there
    assert len(world.instances.rows(world.now)) == 1


def test_there_are_so_many_values_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_VALUES", 5)
    world = World()
    for _ in range(4):
        world.push(world.ask(), x=1, y=2)
    assert [len(row.values) for row in world.instances.rows(world.now)] == [2, 2]


def test_the_push_of_an_instance_that_had_to_go_meanwhile_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_CLIENTS", 1)
    world = World()
    gone = world.ask()
    world.ask()
    world.push(gone, x=1)
    assert world.instances.rows(world.now) == []


# --- values ---


def push(values: Values, *points: Point, wanted: tuple[str, ...] = ("*",)) -> dict[str, float]:
    values.push(Metrics({}, list(points)), Wanted(wanted, 1000))
    return {value.name: value.value for value in values.by_key.values()}


def gauge(name: str, value: float, **attributes: str) -> Point:
    return Point(name, tuple(sorted(attributes.items())), value, False, False)


def test_a_push_replaces_the_one_before() -> None:
    values = Values()
    push(values, gauge("org.apache.kafka.a", 1), gauge("b", 2))
    assert push(values, gauge("org.apache.kafka.a", 3)) == {"a": 3}


def test_differences_are_added_up() -> None:
    values = Values()
    delta = Point("sent.total", (), 5, True, True)
    push(values, delta)
    assert push(values, delta) == {"sent.total": 10}
    push(values)
    assert push(values, delta) == {"sent.total": 5}  # it began again


def test_only_what_was_asked_for_and_can_be_shown_is_kept() -> None:
    found = push(
        Values(),
        gauge("a.b", 1),
        gauge("c", 2),
        gauge("a.nan", float("nan")),
        gauge("a.inf", float("-inf")),
        gauge('a."} evil 1', 3),
        gauge("a." + "x" * 300, 4),
        wanted=("a.",),
    )
    assert found == {"a.b": 1}


def test_a_client_has_so_many_values_and_attributes_and_no_more() -> None:
    values = Values()
    points = [gauge("n", number, number=str(number)) for number in range(300)]
    push(values, *points)
    assert len(values) == values_module.MAX_PER_CLIENT
    many = {f"k{number}": "v" * 1000 for number in range(50)}
    push(values, gauge("n", 1, **many, **{"bad key": "x"}))
    ((_, attributes),) = values.by_key
    assert len(attributes) == values_module.MAX_ATTRIBUTES
    assert {len(text) for _, text in attributes} == {values_module.MAX_TEXT}


def test_what_a_client_says_of_itself_is_bounded() -> None:
    values = Values()
    said = {"group_id": "g" * 1000, "colour": "red", "client_rack": ""}
    values.push(Metrics(said, []), Wanted(("*",), 1000))
    assert values.resource == {"group_id": "g" * 256}
