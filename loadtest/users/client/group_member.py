"""A member of a consumer group: joins, fetches, commits, leaves, and checks what it reads.

Heartbeats use a connection of their own, as in every client: a parked JoinGroup would delay them.
The user decides when to send one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.schema import Message
from moldau.loadtest.users.client.session import Session, records_of
from moldau.loadtest.users.client.stamped import PartitionCheck
from moldau.ops.client import EARLIEST
from moldau.ops.client.membership import REBALANCING, Membership, RejoinNeeded

REBALANCE_MS = 60_000
# Not failures: how a member learns that it has to join again.
EXPECTED = REBALANCING | {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.UNKNOWN_MEMBER_ID}

# The offsets that this process has committed: group, topic, partition -> offset. Offsets only grow
# here: a member continues at the committed offset, and only the partition's owner may commit.
_committed: dict[tuple[str, str, int], int] = {}


class Member:
    def __init__(
        self, session: Session, group: str, topic: str, partitions: Sequence[int], session_ms: int
    ) -> None:
        self._session = session
        self.group = group
        self._topic = topic
        self.membership = Membership(
            self._ask,
            group,
            topic,
            len(partitions),
            session_ms=session_ms,
            rebalance_ms=REBALANCE_MS,
        )
        self.checks: dict[int, PartitionCheck] = {}  # of the assigned partitions
        self._to_commit: set[int] = set()

    def _ask(self, request: Message, error_of: Callable[[Any], int]) -> Any:
        coordinator = self._session.coordinator(self.group, "group")
        return coordinator.call(request, error_of, expected=EXPECTED)

    # --- membership ---

    def enter(self) -> list[str]:
        """Join and sync until it is a member; returns violations about its committed offsets."""
        return self._start(self.membership.join())

    def heartbeat(self, due: float | None = None) -> bool:
        """False: it has to join again."""

        def ask(request: Message, error_of: Callable[[Any], int]) -> Any:
            coordinator = self._session.coordinator(self.group, "heartbeat", "heartbeat")
            return coordinator.call(request, error_of, due=due, expected=EXPECTED)

        try:
            self.membership.heartbeat(ask)
        except RejoinNeeded:
            return False
        return True

    def leave(self) -> None:
        self.membership.leave()

    # --- reading ---

    def _start(self, assigned: list[int]) -> list[str]:
        known = {number: _committed.get(self._key(number), -1) for number in assigned}
        self.checks, self._to_commit = {}, set()
        if not assigned:
            return []
        fetched = self.membership.committed(assigned)
        violations = []
        for number in assigned:
            offset = fetched.get(number, -1)
            name = f"{self._topic}-{number}"
            if offset < known[number]:
                violations.append(
                    f"lost: group {self.group} {name}: {known[number]} was committed, "
                    f"and OffsetFetch returns {offset}"
                )
            if offset < 0:
                offset = self._session.offset(self._topic, number, EARLIEST)
            self.checks[number] = PartitionCheck(name, offset)
        return violations

    def fetch(self, partition: int, max_bytes: int, due: float) -> list[str]:
        """Fetch from one partition; returns violations."""
        check = self.checks[partition]
        answer = self._session.fetch(
            self._topic, partition, check.position, max_bytes=max_bytes, due=due
        )
        before = check.position
        if answer.error_code:
            start, violations = self._session.out_of_range(self._topic, partition, before)
            self.checks[partition] = PartitionCheck(f"{self._topic}-{partition}", start)
            return violations
        violations = check.feed(records_of(answer))
        if check.position > before:
            self._to_commit.add(partition)
        return violations

    def commit(self) -> None:
        """Commit what it read since the last commit. Raises RejoinNeeded."""
        if not self._to_commit:
            return
        offsets = {number: self.checks[number].position for number in sorted(self._to_commit)}
        self.membership.commit(offsets)
        for number, offset in offsets.items():
            key = self._key(number)
            _committed[key] = max(_committed.get(key, -1), offset)
        self._to_commit.clear()

    def _key(self, partition: int) -> tuple[str, str, int]:
        return self.group, self._topic, partition
