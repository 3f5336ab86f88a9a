"""Users that consume in a group: members that stay, and members that come, go and crash."""

from __future__ import annotations

import logging
import random
import time

import gevent

from moldau.loadtest.users.client.group_member import Member
from moldau.loadtest.users.client.schedule import Schedule
from moldau.loadtest.users.client.session import REQUEST_ERRORS
from moldau.loadtest.users.kafka_user import KafkaUser
from moldau.ops.client.membership import RejoinNeeded

logger = logging.getLogger("moldau.loadtest")


class GroupMember(KafkaUser):
    """Join, sync, heartbeat, fetch, commit, leave."""

    weight = 5
    group_kind = "group"

    def on_start(self) -> None:
        super().on_start()
        self.turns = 0
        self.heartbeats: gevent.Greenlet | None = None
        self.new_member()

    def new_member(self) -> None:
        options = self.options
        group = f"{options.group}-{self.group_kind}-{self.number % options.groups}"
        self.member = Member(
            self.session, group, options.topic, self.partitions, options.session_ms
        )
        self.is_member = False

    def step(self) -> None:
        if not self.is_member:
            self.join()
        due = self.schedule.wait()
        owned = list(self.member.checks)
        if not owned:
            return
        self.turns += 1
        partition = owned[self.turns % len(owned)]
        try:
            self.report_violations(self.member.fetch(partition, self.options.fetch_bytes, due))
            self.member.commit()
        except RejoinNeeded:
            self.is_member = False

    def join(self) -> None:
        self.stop_heartbeats()
        self.report_violations(self.member.enter())
        self.is_member = True
        self.schedule = Schedule(self.options.rate)  # nothing was due while the group was forming
        self.heartbeats = gevent.spawn(self.send_heartbeats)

    def send_heartbeats(self) -> None:
        """Send heartbeats on a connection of their own, until the group rebalances."""
        schedule = Schedule(1000 / self.options.heartbeat_ms)
        while self.is_member:
            due = schedule.wait()
            try:
                if not self.member.heartbeat(due):
                    self.is_member = False
            except REQUEST_ERRORS:
                self.session.forget_brokers()

    def stop_heartbeats(self) -> None:
        if self.heartbeats is not None:
            self.heartbeats.kill()
            self.heartbeats = None

    def on_stop(self) -> None:
        if self.partitions:
            self.stop_heartbeats()
            try:
                self.member.leave()
            except REQUEST_ERRORS as error:
                logger.warning("could not leave group %s: %s", self.member.group, error)
        super().on_stop()


class GroupChurn(GroupMember):
    """Stays for a while, then leaves or crashes, and comes back as a new member."""

    weight = 2
    group_kind = "churn"
    crash_share = 0.3

    def new_member(self) -> None:
        super().new_member()
        self.until = time.perf_counter() + random.expovariate(1 / self.options.lifetime)

    def step(self) -> None:
        super().step()
        if time.perf_counter() < self.until:
            return
        self.stop_heartbeats()
        if random.random() < self.crash_share:
            self.session.close()  # the group notices when the session times out
        else:
            self.member.leave()
        self.new_member()
