"""`moldau bench groups --protocol consumer`: groups of the consumer protocol (KIP-848).

Members own ten partitions each, up to 10,000 in all. A run forms groups, then in each of them one
member leaves and another joins, again and again: a rebalance lasts until every partition has an
owner and all members are in the same epoch. Members do not wait for the heartbeat interval, and a
single group computes its targets without the assignment interval.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections.abc import Sequence

from moldau.broker.placement import owner_of
from moldau.broker.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.broker.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.loadtest.bench.groups import (
    MIN_REBALANCES,
    ROLE_OF_FIGURE,
    GroupsRun,
    connect_all,
    each,
    together,
)
from moldau.loadtest.bench.harness.client import Client, check_error
from moldau.loadtest.bench.harness.consumer_members import ConsumerBenchMember, Crew
from moldau.loadtest.bench.harness.coordinator_requests import coordinators
from moldau.loadtest.bench.harness.figures import Figures
from moldau.loadtest.bench.harness.measure import CpuMeter, resident_bytes
from moldau.loadtest.bench.harness.requests import RequestTypes

NEEDED: RequestTypes = [ConsumerGroupHeartbeatRequest, IncrementalAlterConfigsRequest]
PARTITIONS_EACH, MOST_PARTITIONS = 10, 10_000
MIN_MEMBERS_FOR_MEMORY = 100
GROUP_RESOURCE, SET = 32, 0
FEW_GROUPS = 10  # get a configuration of their own


class ConsumerGroupsRun(GroupsRun):
    async def measure(self, ports: Sequence[int]) -> Figures:
        partitions = min(PARTITIONS_EACH * self._members, MOST_PARTITIONS)
        names = [f"bench-{secrets.token_hex(6)}" for _ in range(self._groups)]
        with Client(self._target.address) as admin, admin.temporary_topic(partitions) as topic:
            if len(names) <= FEW_GROUPS:
                self._without_interval(admin, names)
            memory = resident_bytes(self._target.worker_pids)
            crews = [Crew(partitions) for _ in names]
            await self._open(names, crews, topic, ports)
            members = [member for crew in crews for member in crew.members]
            try:
                figures: Figures = {**await self._form_all(members)}
                grown = resident_bytes(self._target.worker_pids) - memory
                figures |= await self._rebalance_all(crews, members)
                figures |= await self._beat_all(members)
                figures["broker MB"] = resident_bytes(self._target.broker_pids) / 1e6
                for name, role in ROLE_OF_FIGURE.items():
                    if not self._target.pids[role]:
                        figures[name] = None
                if self._target.worker_pids and len(members) >= MIN_MEMBERS_FOR_MEMORY:
                    figures["KB/member"] = grown / len(members) / 1024
                await together(member.leave() for member in members)
            finally:
                for member in members:
                    member.connection.close()
        return figures

    def _without_interval(self, admin: Client, names: list[str]) -> None:
        config = AlterableConfig("consumer.assignment.interval.ms", SET, "0")
        resources = [AlterConfigsResource(GROUP_RESOURCE, name, [config]) for name in names]
        for answer in admin.ask(IncrementalAlterConfigsRequest(resources)).responses:
            check_error("IncrementalAlterConfigs", answer.error_code)

    async def _open(
        self, names: list[str], crews: list[Crew], topic: str, ports: Sequence[int]
    ) -> None:
        if self._target.is_local_moldau:
            found = {name: (self._target.host, ports[owner_of(name, len(ports))]) for name in names}
        else:
            found = coordinators(self._target, names)
        wanted = [(name, crew) for name, crew in zip(names, crews, strict=True)]
        seats = [seat for seat in wanted for _ in range(self._members)]
        opened = await connect_all([found[name] for name, _ in seats])
        for (name, crew), connection in zip(seats, opened, strict=True):
            ConsumerBenchMember(name, topic, crew, connection)

    async def _form_all(self, members: list[ConsumerBenchMember]) -> dict[str, float]:
        meter = CpuMeter(self._target.pids)
        began = time.perf_counter()
        await together(member.join() for member in members)
        joining = time.perf_counter() - began
        await together(member.settle() for member in members)
        return {
            "form s": time.perf_counter() - began,
            "form us/member": each(meter.stop()["worker"], len(members)),
            "joins/s": len(members) / joining,
        }

    async def _rebalance_all(
        self, crews: list[Crew], members: list[ConsumerBenchMember]
    ) -> dict[str, float]:
        meter = CpuMeter(self._target.pids)
        began = time.perf_counter()
        rounds: list[float] = []
        while len(rounds) < MIN_REBALANCES or time.perf_counter() - began < self._seconds:
            start = time.perf_counter()
            await together(crew.members[0].rejoin() for crew in crews)
            await together(member.settle() for member in members)
            rounds.append(time.perf_counter() - start)
        cpu = meter.stop()
        served = len(members) * len(rounds)
        seconds = statistics.median(rounds)
        return {
            "rebalance ms": seconds * 1000,
            "rebalance us/member": each(seconds, len(members)),
            "of it broker us": each(cpu["broker"], served),
            "of it worker us": each(cpu["worker"], served),
            "of it client us": each(cpu["client"], served),
        }

    async def _beat_all(self, members: list[ConsumerBenchMember]) -> dict[str, float]:
        meter = CpuMeter(self._target.pids)
        began = time.perf_counter()
        for member in members:
            frame, expected = member.heartbeat_frame(), member.heartbeat_response()
            member.connection.start_repeating(frame, expected)
        await asyncio.sleep(self._seconds)
        count = sum(await together(member.connection.stop_repeating() for member in members))
        seconds = time.perf_counter() - began
        cpu = meter.stop()
        bare = await self._bare(
            members[0].heartbeat_frame(), len(members), len(members[0].heartbeat_response())
        )
        return {
            "heartbeats/s": count / seconds,
            "broker us/heartbeat": each(cpu["broker"], count),
            "worker us/heartbeat": each(cpu["worker"], count),
            "heartbeats/s of worker core": count / cpu["worker"] if cpu["worker"] else 0.0,
            "bare us/request": bare,
        }
