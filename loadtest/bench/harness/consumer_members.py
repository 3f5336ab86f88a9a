"""Members of the consumer protocol (KIP-848), each on a connection of its own.

They follow their group as clients do, but without waiting for the heartbeat interval: what is
measured is the work of a rebalance, not the pace of heartbeats.
"""

from __future__ import annotations

import asyncio
import secrets

from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import LENGTH_SIZE, response_frame
from moldau.broker.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from moldau.loadtest.bench.harness.client import check_error
from moldau.loadtest.bench.harness.coordinator_requests import COORDINATOR_NOT_READY
from moldau.loadtest.bench.harness.group_members import MemberConnection
from moldau.loadtest.bench.harness.requests import CORRELATION_ID, encode

HEARTBEAT = APIS[ApiKey.CONSUMER_GROUP_HEARTBEAT]
REBALANCE_MS = 60_000
PAUSE_S = 0.001


class Crew:
    """What the members of one group know of each other."""

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
        """What a heartbeat at rest is answered, without its length."""
        message = ConsumerGroupHeartbeatResponse(
            member_id=self.member_id,
            member_epoch=self.epoch,
            heartbeat_interval_ms=self._interval_ms,
        )
        frame = response_frame(HEARTBEAT, HEARTBEAT.highest, CORRELATION_ID, message)
        return b"".join(frame)[LENGTH_SIZE:]
