"""What a user sees of reports, their history and group events."""

from __future__ import annotations

from msgspec.structs import replace

from moldau.broker.metrics.document import (
    ClientRow,
    ClientValue,
    CommittedRow,
    Document,
    Family,
    GroupRow,
    Kind,
    PartitionRow,
)
from moldau.broker.private.api import answer_body
from moldau.broker.private.table import VISIBLE_NAMES, VisibleNames
from moldau.ops.console.history import History
from moldau.ops.console.visible_names import (
    NOTHING,
    Visible,
    VisibleHistory,
    merged,
    visible_events,
    visible_snapshot,
)
from moldau.ops.http.lag import Lags
from moldau.ops.http.snapshot import Process, Snapshot, Status
from moldau.ops.operations.group_history import Event, film

STATUS = Status([Process("worker", 0, 11, 9093, 5.0, 2, "running")], {"kind": "embedded"})
FAMILY = Family("moldau_topic_bytes_in_total", Kind.COUNTER, "…", ("topic",))
ALL = Visible({"open", "secret"}, {"readers", "both"}, cluster=True)
SOME = Visible({"open"}, {"both"}, cluster=False)


def snapshot(end: int = 10) -> Snapshot:
    document = Document(
        families=[FAMILY],
        partitions=[
            PartitionRow("open", 0, 0, end, 100, 0, end, end),
            PartitionRow("secret", 0, 0, 3 * end, 100, 0, 3 * end, 3 * end),
        ],
        groups=[
            GroupRow("readers", "Stable", 1, [CommittedRow("secret", 0, 1)]),
            GroupRow(
                "both", "Stable", 2, [CommittedRow("secret", 0, 1), CommittedRow("open", 0, 4)]
            ),
        ],
    )
    return Snapshot(STATUS, [document, None], [Document(families=[FAMILY])])


def test_reports_have_what_the_user_may_describe() -> None:
    seen = visible_snapshot(snapshot(), SOME)
    document = seen.workers[0]
    assert document is not None
    assert [row.topic for row in document.partitions] == ["open"]
    assert [(row.group, row.committed) for row in document.groups] == [
        ("both", [CommittedRow("open", 0, 4)])
    ]
    assert Lags(seen).records(document.groups[0]) == 6
    assert seen.workers[1] is None
    assert seen.status == Status([], {})
    assert b"secret" not in repr(seen).encode()
    assert document.families == []
    assert seen.routers == [Document()]


def test_who_may_describe_everything_sees_everything() -> None:
    seen = visible_snapshot(snapshot(), ALL)
    assert seen.status == STATUS
    given, document = snapshot().workers[0], seen.workers[0]
    assert given is not None
    assert document is not None
    assert (document.partitions, document.groups) == (given.partitions, given.groups)


def test_nothing_is_nothing() -> None:
    document = visible_snapshot(snapshot(), NOTHING).workers[0]
    assert document == Document()


def test_history_is_that_of_visible_topics_and_groups() -> None:
    history = History()
    for second in range(3):
        found = snapshot(10 * (second + 1))
        history.add(float(second), float(second), replace(found, workers=found.workers[:1]))
    everything, some = VisibleHistory(history, ALL), VisibleHistory(history, SOME)
    assert everything.record_rates() == history.record_rates() == [40.0, 40.0]
    assert some.record_rates() == some.record_rates("open") == [10.0, 10.0]
    assert some.record_rates("secret") == []
    assert len(everything.request_rates()) == 2
    assert some.request_rates() == []
    assert [lag for _, lag in everything.lags("both")] == [35, 75, 115]
    # The lag is a sum over a topic that is hidden.
    assert some.lags("both") == some.lags("readers") == []
    assert len(VisibleHistory(history, SOME._replace(topics=ALL.topics)).lags("both")) == 3


def test_events_of_a_group_name_visible_topics() -> None:
    owner = {"member": "m", "client": "c", "host": "/h", "topics": {"open": "0-1", "secret": "0"}}
    events = [
        Event(1, "rebalance_started", {"reason": "m joined", "generation": 1}),
        Event(2, "assigned", {"generation": 1, "owners": [owner]}),
        Event(3, "commits", {"offsets": {"open": [[0, 4]], "secret": [[0, 9]]}}),
    ]
    seen = film(visible_events(events, SOME), 0, 10)
    assert {place.topic for place in seen.places} == {"open"}
    assert len(seen.spans) == 2
    assert [list(each.offsets.values()) for each in seen.commits] == [[4]]
    assert "secret" not in repr(visible_events(events, SOME))
    assert "secret" in repr(events)  # what is kept was not changed


def test_what_workers_answer_is_added_up() -> None:
    """Each has the groups that it coordinates."""
    answers = [
        VisibleNames(cluster=False, topics=["a", "b"], groups=["g"]),
        VisibleNames(cluster=False, topics=["a", "b"], groups=["h"]),
    ]
    assert [
        VISIBLE_NAMES.read_answer(answer_body(VISIBLE_NAMES.answer(each))) for each in answers
    ] == answers
    assert merged(answers) == Visible({"a", "b"}, {"g", "h"}, cluster=False, everything=False)
    super_user = VisibleNames(everything=True, cluster=True)
    assert merged([super_user, super_user]) == Visible(set(), set(), cluster=True, everything=True)
    # They may know of a change one after the other.
    mixed = merged([super_user, answers[0]])
    assert (mixed.everything, mixed.cluster) == (False, False)
    assert merged([]) == NOTHING


def test_everything_is_not_copied() -> None:
    given = snapshot()
    everything = Visible(set(), set(), cluster=True, everything=True)
    assert visible_snapshot(given, everything) is given


def test_clients_are_those_of_visible_groups() -> None:
    values = [
        ClientValue("poll", (), 1.0, False),
        ClientValue("records", (("topic", "open"),), 2.0, True),
        ClientValue("records", (("topic", "secret"),), 3.0, True),
    ]
    rows = [
        ClientRow("i", "c", "h", "", "", 1, said, False, values)
        for said in ({"group_id": "both"}, {"group_id": "readers"}, {})
    ]
    seen = visible_snapshot(Snapshot(STATUS, [Document(clients=rows)], []), SOME)
    assert seen.workers[0] is not None
    (client,) = seen.workers[0].clients
    assert client.resource == {"group_id": "both"}
    assert [value.value for value in client.values] == [1.0, 2.0]
