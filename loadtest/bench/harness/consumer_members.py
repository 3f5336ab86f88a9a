"""Groups of the consumer protocol (KIP-848): raw members, each on a connection of its own.

Members own ten partitions each, up to 10,000 in all. In a rebalance one member of each group leaves
and another joins; it lasts until every partition has an owner and all members are in the same
epoch. Members do not wait for the heartbeat interval, and a few groups compute their targets
without the assignment interval: the work of a rebalance is measured, not its pace.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import LENGTH_SIZE, response_frame
from moldau.broker.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from moldau.broker.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.loadtest.bench.harness.client import Client, check_error
from moldau.loadtest.bench.harness.coordinator_requests import COORDINATOR_NOT_READY
from moldau.loadtest.bench.harness.figures import Figures
from moldau.loadtest.bench.harness.group_members import MemberConnection, together
from moldau.loadtest.bench.harness.requests import CORRELATION_ID, RequestTypes, encode
from moldau.loadtest.bench.harness.target import Target

HEARTBEAT = APIS[ApiKey.CONSUMER_GROUP_HEARTBEAT]
REBALANCE_MS = 60_000
PAUSE_S = 0.001
PARTITIONS_EACH, MOST_PARTITIONS = 10, 10_000
GROUP_RESOURCE, SET = 32, 0
FEW_GROUPS = 10  # get a configuration of their own


class Crew:
    """The members of one group, which know of each other."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.members: list[ConsumerBenchMember] = []

    def is_at_rest(self) -> bool:
        epochs = {member.epoch for member in self.members}
        owned = sum(member.owned_count for member in self.members)
        return len(epochs) == 1 and owned == self.partitions


class ConsumerBenchMember:
    def __init__(self, group_id: str, topic: str, crew: Crew, connection: MemberConnection) -> None:
        self.group_id = group_id
        self.connection = connection
        self.member_id = secrets.token_hex(8)
        self.epoch = 0
        self.owned_count = 0
        self._topic = topic
        self._crew = crew
        self._owned: list[TopicPartitions] = []
        self._interval_ms = 0
        crew.members.append(self)

    async def join(self) -> None:
        request = ConsumerGroupHeartbeatRequest(
            self.group_id,
            self.member_id,
            0,
            rebalance_timeout_ms=REBALANCE_MS,
            subscribed_topic_names=[self._topic],
            topic_partitions=[],
        )
        await self._call(request)

    async def settle(self) -> None:
        """Send heartbeats until the whole group is at rest."""
        while not self._crew.is_at_rest():
            await self._call(
                ConsumerGroupHeartbeatRequest(
                    self.group_id, self.member_id, self.epoch, topic_partitions=self._owned
                )
            )
            await asyncio.sleep(PAUSE_S)

    async def rejoin(self) -> None:
        """Leave and come back as another member: the partitions move twice."""
        await self.leave()
        self.member_id, self.epoch, self._owned, self.owned_count = secrets.token_hex(8), 0, [], 0
        await self.join()

    async def leave(self) -> None:
        await self.connection.call(ConsumerGroupHeartbeatRequest(self.group_id, self.member_id, -1))

    async def _call(self, request: ConsumerGroupHeartbeatRequest) -> None:
        while True:
            answer: ConsumerGroupHeartbeatResponse = await self.connection.call(request)
            if answer.error_code not in COORDINATOR_NOT_READY:
                break
            await asyncio.sleep(0.05)
        check_error("ConsumerGroupHeartbeat", answer.error_code)
        self.epoch, self._interval_ms = answer.member_epoch, answer.heartbeat_interval_ms
        if answer.assignment is not None:
            self._owned = answer.assignment.topic_partitions
            self.owned_count = sum(len(one.partitions) for one in self._owned)

    def heartbeat_frame(self) -> bytes:
        return encode(ConsumerGroupHeartbeatRequest(self.group_id, self.member_id, self.epoch))

    def heartbeat_response(self) -> bytes:
        message = ConsumerGroupHeartbeatResponse(
            member_id=self.member_id,
            member_epoch=self.epoch,
            heartbeat_interval_ms=self._interval_ms,
        )
        frame = response_frame(HEARTBEAT, HEARTBEAT.highest, CORRELATION_ID, message)
        return b"".join(frame)[LENGTH_SIZE:]


class ConsumerGroups:
    needed: ClassVar[RequestTypes] = [ConsumerGroupHeartbeatRequest, IncrementalAlterConfigsRequest]

    def __init__(self) -> None:
        self._crews: list[Crew] = []
        self._topic = ""
        self._partitions = 0

    @contextmanager
    def prepared(self, target: Target, names: Sequence[str], size: int) -> Iterator[None]:
        self._partitions = min(PARTITIONS_EACH * size, MOST_PARTITIONS)
        with Client(target.address) as admin, admin.temporary_topic(self._partitions) as topic:
            self._topic = topic
            if len(names) <= FEW_GROUPS:
                config = AlterableConfig("consumer.assignment.interval.ms", SET, "0")
                resources = [AlterConfigsResource(GROUP_RESOURCE, name, [config]) for name in names]
                for answer in admin.ask(IncrementalAlterConfigsRequest(resources)).responses:
                    check_error("IncrementalAlterConfigs", answer.error_code)
            yield

    def add(self, name: str, connections: Sequence[MemberConnection]) -> None:
        crew = Crew(self._partitions)
        self._crews.append(crew)
        for connection in connections:
            ConsumerBenchMember(name, self._topic, crew, connection)

    @property
    def members(self) -> list[ConsumerBenchMember]:
        return [member for crew in self._crews for member in crew.members]

    async def form(self) -> Figures:
        members = self.members
        began = time.perf_counter()
        await together(member.join() for member in members)
        joining = time.perf_counter() - began
        await together(member.settle() for member in members)
        return {"joins/s": len(members) / joining}

    async def rebalance(self) -> float:
        await together(crew.members[0].rejoin() for crew in self._crews)
        await together(member.settle() for member in self.members)
        return 0.0
