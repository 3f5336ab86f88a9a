"""The load test: `locust -f loadtest --headless -u 200 -r 50 -t 1m --host 127.0.0.1:9092`.

Producer     batches of stamped records on a schedule, to the partitions in turn
TailReader   parked at the end of one partition; tells the age of what arrives ("end to end")
GroupMember  a consumer of a group: join, sync, heartbeats, fetch, commit, leave
GroupChurn   the same in groups of their own, where members come, go, and crash
AdminUser    metadata, descriptions, lists
ColdReader   one partition from its start to its end, over and over

Every API is a line of the statistics, its type is the user's class. Users keep to a schedule, and
latencies count from when a request was due: a slow broker shows. TailReader's fetches wait for
records, so theirs is the time between records; what it measures is "end to end".

What is read is checked (see users/client/stamped.py). A lost, duplicated, reordered or damaged
record is a failure of type "check" that says which, and the run ends with exit code 1, also when
locust is told to ignore errors (--exit-code-on-error 0).
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import sys
import time
from typing import Any

import gevent
from locust import LoadTestShape, User, task
from locust.env import Environment

from broker.wire.codecs import CODEC_NAMES
from broker.wire.messages.describe_cluster import DescribeClusterRequest
from broker.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from broker.wire.messages.describe_groups import DescribeGroupsRequest
from broker.wire.messages.find_coordinator import FindCoordinatorRequest
from broker.wire.messages.list_groups import ListGroupsRequest
from broker.wire.messages.metadata import MetadataRequest
from loadtest._hooks import DEFAULT_HOST, bootstrap_of, note
from loadtest.users.client.connection import top_level
from loadtest.users.client.group_member import Member, OutOfGroup
from loadtest.users.client.pace import Pace, age_s
from loadtest.users.client.session import EARLIEST, LATEST, RETRY_S, Fault, Session, blob_of
from loadtest.users.client.stamped import PartitionCheck
from loadtest.users.client.stamped_producer import ProducerSettings, StampedProducer
from loadtest.users.shapes import SHAPES, USUAL_S, chosen_shape

CHECK = "check"  # the type of the failures that are violations
STARTED_APART = 7919  # so that the processes' users do not all begin with partition 0
TOPIC_RESOURCE = 2

_numbers = itertools.count()
_log = logging.getLogger(__name__)


class KafkaUser(User):
    """What all have in common: a session, a schedule, a partition to begin with."""

    abstract = True
    host = os.environ.get("MOLDAU_BOOTSTRAP", DEFAULT_HOST)

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.options = self._options(environment)
        self.number = next(_numbers) + os.getpid() * STARTED_APART
        kind = type(self).__name__
        self.session = Session(bootstrap_of(environment), f"load-{kind}", self.report)
        self.pace = Pace(self.options.rate)
        self.partitions: list[int] = []

    @staticmethod
    def _options(environment: Environment) -> Any:
        return environment.parsed_options

    def report(self, api: str, seconds: float, size: int, fault: Exception | None) -> None:
        self.environment.events.request.fire(
            request_type=type(self).__name__,
            name=api,
            response_time=seconds * 1000,
            response_length=size,
            exception=fault,
            context={},
        )

    def tell(self, violations: list[str]) -> None:
        """Records that are not as they were sent."""
        for violation in violations:
            if not note(violation):
                return
            self.environment.events.request.fire(
                request_type=CHECK,
                name=type(self).__name__,
                response_time=0,
                response_length=0,
                exception=AssertionError(violation),
                context={},
            )

    def look_around(self) -> None:
        """Until the broker says which partitions there are."""
        while not self.partitions:
            try:
                self.partitions = self.session.partitions(self.options.topic)
            except Fault:
                time.sleep(RETRY_S)

    def on_start(self) -> None:
        self.look_around()

    @task
    def turn(self) -> None:
        """One step; faults of the wire are in the statistics already."""
        try:
            self.step()
        except Fault:
            self.session.forget()
            time.sleep(RETRY_S)

    def step(self) -> None:
        raise NotImplementedError

    def on_stop(self) -> None:
        self.session.close()


class Producer(KafkaUser):
    weight = 6

    def on_start(self) -> None:
        super().on_start()
        options = self.options
        acks = {"all": -1, "1": 1, "0": 0}[options.acks]
        settings = ProducerSettings(
            options.topic,
            options.record_bytes,
            options.batch_bytes,
            CODEC_NAMES[options.codec],
            acks,
            options.idempotent == "yes" and acks == -1,
        )
        self.producer = StampedProducer(self.session, settings)

    def step(self) -> None:
        due = self.pace.wait()
        self.number += 1
        partition = self.partitions[self.number % len(self.partitions)]
        self.tell(self.producer.produce(partition, due))

    def on_stop(self) -> None:
        try:
            if self.partitions:
                self.tell(self.producer.read_back())
        except Fault as fault:
            _log.warning("what was acknowledged could not be read back: %s", fault)
        super().on_stop()


class PartitionReader(KafkaUser):
    """Reads one partition after the other, each from `begin_at` on."""

    abstract = True
    begin_at = EARLIEST
    check: PartitionCheck | None = None
    partition = 0

    def begin(self) -> PartitionCheck:
        self.partition = self.partitions[self.number % len(self.partitions)]
        offset = self.session.offset(self.options.topic, self.partition, self.begin_at)
        return PartitionCheck(f"{self.options.topic}-{self.partition}", offset)

    def read(self, due: float | None, max_wait_ms: int) -> int:
        """Check what comes next; gives the end of the log."""
        if self.check is None:
            self.check = self.begin()
        answer = self.session.fetch(
            self.options.topic,
            self.partition,
            self.check.position,
            max_bytes=self.options.fetch_bytes,
            max_wait_ms=max_wait_ms,
            due=due,
        )
        if answer.error_code:
            place = self.options.topic, self.partition, self.check.position
            self.tell(self.session.out_of_range(*place)[1])
            self.check = None  # begins anew
        else:
            self.tell(self.check.feed(blob_of(answer)))
        return answer.high_watermark


class TailReader(PartitionReader):
    weight = 5
    begin_at = LATEST
    max_wait_ms = 500

    def step(self) -> None:
        before = 0 if self.check is None else self.check.records
        self.read(None, self.max_wait_ms)
        if self.check is not None and self.check.records > before and self.check.last is not None:
            self.report("end to end", age_s(self.check.last.due_us), 0, None)


class ColdReader(PartitionReader):
    weight = 1

    def step(self) -> None:
        end = self.read(self.pace.wait(), 0)
        if self.check is not None and self.check.position >= end:
            self.check = None  # from the start of the next one
            self.number += 1


class GroupMember(KafkaUser):
    weight = 5
    group_kind = "group"

    def on_start(self) -> None:
        super().on_start()
        self.turns = 0
        self.beating: gevent.Greenlet | None = None
        self.new_member()

    def new_member(self) -> None:
        options = self.options
        group = f"{options.group}-{self.group_kind}-{self.number % options.groups}"
        self.member = Member(
            self.session, group, options.topic, self.partitions, options.session_ms
        )
        self.is_in = False

    def step(self) -> None:
        if not self.is_in:
            self.enter()
        due = self.pace.wait()
        owned = list(self.member.checks)
        if not owned:
            return
        self.turns += 1
        partition = owned[self.turns % len(owned)]
        try:
            self.tell(self.member.fetch(partition, self.options.fetch_bytes, due))
            self.member.commit()
        except OutOfGroup:
            self.is_in = False

    def enter(self) -> None:
        self.stop_beating()
        self.tell(self.member.enter())
        self.is_in = True
        self.pace = Pace(self.options.rate)  # nothing was due while the group was forming
        self.beating = gevent.spawn(self.beat)

    def beat(self) -> None:
        """On a connection of its own, until the group has moved on."""
        pace = Pace(1000 / self.options.heartbeat_ms)
        while self.is_in:
            due = pace.wait()
            try:
                if not self.member.heartbeat(due):
                    self.is_in = False
            except Fault:
                self.session.forget()

    def stop_beating(self) -> None:
        if self.beating is not None:
            self.beating.kill()
            self.beating = None

    def on_stop(self) -> None:
        if self.partitions:
            self.stop_beating()
            try:
                self.member.leave()
            except Fault as fault:
                _log.warning("%s could not be left: %s", self.member.group, fault)
        super().on_stop()


class GroupChurn(GroupMember):
    """Stays for a while, then leaves or crashes, and comes back as a new member."""

    weight = 2
    group_kind = "churn"
    crashes = 0.3

    def new_member(self) -> None:
        super().new_member()
        self.until = time.perf_counter() + random.expovariate(1 / self.options.lifetime)

    def step(self) -> None:
        super().step()
        if time.perf_counter() < self.until:
            return
        self.stop_beating()
        if random.random() < self.crashes:
            self.session.close()  # the group hears of it when its session has run out
        else:
            self.member.leave()
        self.new_member()


class AdminUser(KafkaUser):
    weight = 1

    def on_start(self) -> None:
        super().on_start()
        options = self.options
        group = f"{options.group}-group-{self.number % options.groups}"
        topic = DescribeConfigsResource(TOPIC_RESOURCE, options.topic, None)
        self.requests = itertools.cycle(
            [
                (MetadataRequest(None, False), None),
                (DescribeClusterRequest(), top_level),
                (FindCoordinatorRequest(group), top_level),
                (ListGroupsRequest(), top_level),
                (DescribeConfigsRequest([topic]), lambda answer: int(answer.results[0].error_code)),
                (DescribeGroupsRequest([group]), None),
                (None, None),
            ]
        )

    def step(self) -> None:
        due = self.pace.wait()
        request, code_of = next(self.requests)
        if request is None:
            self.number += 1
            partition = self.partitions[self.number % len(self.partitions)]
            self.session.offset(self.options.topic, partition, LATEST, due)
        elif isinstance(request, DescribeGroupsRequest):
            (group,) = request.groups
            wire = self.session.coordinator(group, "describe")
            wire.call(request, lambda answer: int(answer.groups[0].error_code), due=due)
        else:
            self.session.ask(request, code_of, due)


_SHAPE = chosen_shape(sys.argv, os.environ.get("MOLDAU_LOAD_SHAPE"))
if _SHAPE in SHAPES:  # a shape that is there is used: locust has no way to say no to it

    class ChosenShape(LoadTestShape):
        """The one of users/shapes.py that was asked for."""

        use_common_options = True

        def tick(self) -> tuple[int, float] | None:
            assert self.runner is not None
            options: Any = self.runner.environment.parsed_options
            total = float(options.run_time or USUAL_S)
            gone: float = self.get_run_time()  # type: ignore[no-untyped-call]
            if gone >= total:
                return None
            users = SHAPES[_SHAPE or ""](gone, total, options.num_users or 1)
            return users, float(options.spawn_rate or users)
