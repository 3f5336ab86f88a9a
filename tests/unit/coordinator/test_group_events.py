"""Group events when the store is slow: bounded and counted, no request waits."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from moldau.broker.coordinator.groups.events import BEFORE_PER_WINDOW, GroupEvents
from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.group.effects import MemberChange, MemberChanged, StateChanged
from moldau.broker.group.offsets import CommittedOffsets, TopicPartition, new_commit
from moldau.broker.group.states import GroupState
from moldau.broker.group.views import PartitionOwner
from moldau.broker.log.writing import event_topic
from moldau.broker.wire.records import Record


class Written(GroupEvents):
    """Writes into a list; `fault` makes it fail."""

    def __init__(self) -> None:
        self.now = 1000
        places = tuple(("orders", number) for number in (0, 1, 2, 7))
        owner = PartitionOwner("m", "client", "/host", places)
        group = SimpleNamespace(owners=lambda: [owner])
        offsets = CommittedOffsets({TopicPartition("orders", 0): new_commit(5, 1000)})
        self.groups: Any = SimpleNamespace(by_id={"g": group}, offsets={"g": offsets})
        self.coordinator: Any = SimpleNamespace(
            now_ms=lambda: self.now, offsets=SimpleNamespace(commit_counts=None), groups=self.groups
        )
        coordinator: Any = self.coordinator
        self.fault: KafkaError | None = None
        self.appends: list[list[dict[str, Any]]] = []
        nothing: Any = None
        super().__init__(coordinator, nothing, nothing, 3, every_s=0.0)
        self._topic.append = self._append  # type: ignore[method-assign]

    async def _append(self, records: list[Record]) -> None:
        if self.fault is not None:
            raise self.fault
        self.appends.append([msgspec.json.decode(record.value or b"") for record in records])


def joined(group: str = "g") -> MemberChanged:
    return MemberChanged(group, MemberChange.JOINED, "m", None, "client", "/host", 1)


def moved(previous: GroupState, state: GroupState, reason: str) -> StateChanged:
    return StateChanged("g", previous, state, 7, 2, reason)


async def test_a_pause_lasts_until_members_have_their_assignments() -> None:
    events = Written()
    preparing, completing = GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE
    events.changed(moved(GroupState.STABLE, preparing, "first"))
    events.now = 1200
    events.changed(moved(preparing, completing, "joined"))
    events.changed(moved(completing, preparing, "second"))
    events.now = 1500
    events.changed(moved(preparing, completing, "joined"))
    events.changed(moved(completing, GroupState.STABLE, "assigned"))
    await events.flush()
    (written,) = events.appends
    assert [one["event"] for one in written] == [
        "rebalance_started", "rebalance_started", "rebalance_completed", "assigned",
    ]  # fmt: skip
    assert written[2]["duration_ms"] == 500
    assert written[2]["reason"] == "first"
    assert written[3]["generation"] == 7
    assert written[3]["owners"] == [
        {"member": "m", "client": "client", "host": "/host", "topics": {"orders": "0-2,7"}}
    ]


async def test_offsets_are_kept_before_they_are_moved() -> None:
    events = Written()
    for _ in range(2 * BEFORE_PER_WINDOW):  # forward again and again: some are enough
        events.note_offsets_before("g", False)
    events.note_offsets_before("g", True)
    events.note_offsets_before("unknown", True)
    await events.flush()
    (written,) = events.appends
    assert [(one["event"], one["before"], one["offsets"]) for one in written] == [
        ("commits", True, {"orders": [[0, 5]]})
    ] * (BEFORE_PER_WINDOW + 1)
    assert all(one["worker"] == 3 for one in written)


async def test_what_does_not_fit_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_topic, "MAX_QUEUED", 5)
    events = Written()
    events.fault = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "away")
    for _ in range(8):
        events.changed(joined())
    await events.flush()
    assert events.appends == []
    events.fault = None
    await events.flush()
    (written,) = events.appends
    assert [one["event"] for one in written] == ["member_joined"] * 5 + ["events_dropped"]
    assert written[-1]["count"] == 3
    await events.flush()
    assert len(events.appends) == 1  # nothing is written twice


async def test_an_append_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_topic, "MAX_BATCH_BYTES", 1000)
    events = Written()
    for _ in range(20):
        events.changed(joined())

    for _ in range(20):
        await events.flush()
    written = [one for append in events.appends for one in append]
    assert len(written) == 20
    assert max(map(len, events.appends)) < 10
