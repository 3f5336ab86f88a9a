"""What clients pushed, as metrics of Prometheus and beside the members of a group."""

from __future__ import annotations

import pytest

from moldau.broker.metrics.document import ClientRow, ClientValue, Document
from moldau.broker.private.api import answer_body
from moldau.broker.private.table import METRICS
from moldau.ops.http import clients
from moldau.ops.http.clients import client_families, measures
from moldau.ops.http.prometheus import text_of
from moldau.ops.http.snapshot import Snapshot
from moldau.ops.operations.groups import GroupMember


def row(instance: str = "i", *values: ClientValue, **facts: object) -> ClientRow:
    given = {"client_id": "c", "host": "10.0.0.1", "pushed_ms": 1000, "resource": {}} | facts
    return ClientRow(
        instance,
        software_name="rdkafka",
        software_version="2",
        is_over=bool(given.pop("is_over", False)),
        values=list(values),
        **given,  # type: ignore[arg-type]
    )


def value(name: str, number: float, is_counter: bool = False, **attributes: str) -> ClientValue:
    return ClientValue(name, tuple(attributes.items()), number, is_counter)


def snapshot(*workers: list[ClientRow]) -> Snapshot:
    documents = [
        METRICS.read_answer(answer_body(METRICS.answer(Document(clients=rows)))) for rows in workers
    ]
    return Snapshot(None, [*documents, None], [])


def lines(found: Snapshot) -> list[str]:
    return [each for each in text_of(client_families(found)).splitlines() if each[:1] != "#"]


WHO = (
    'client_id="c",client_instance_id="i",client_software_name="rdkafka",'
    'client_software_version="2",client_host="10.0.0.1"'
)


def test_metrics_have_the_labels_of_the_client_and_their_own() -> None:
    found = snapshot(
        [
            row(
                "i",
                value("consumer.poll.idle.ratio.avg", 0.5),
                value("producer.record-send.total", 7, True, **{"node.id": "1", "client_id": "x"}),
                resource={"group_id": "billing"},
            )
        ]
    )
    assert lines(found) == [
        f'moldau_client_consumer_poll_idle_ratio_avg{{{WHO},consumergroup="billing"}} 0.5',
        f'moldau_client_producer_record_send_total{{{WHO},node_id="1",consumergroup="billing"}} 7',
    ]
    text = text_of(client_families(found))
    assert "# TYPE moldau_client_consumer_poll_idle_ratio_avg gauge" in text
    assert "# TYPE moldau_client_producer_record_send_total counter" in text


def test_the_last_push_of_a_client_counts_whichever_worker_got_it() -> None:
    old, new = row("i", value("a", 1), pushed_ms=1), row("i", value("a", 2), pushed_ms=2)
    assert lines(snapshot([old], [new])) == lines(snapshot([new], [old]))
    assert lines(snapshot([old], [new])) == [f"moldau_client_a{{{WHO}}} 2"]


def test_what_clients_say_is_escaped_and_no_series_is_there_twice() -> None:
    evil = row("i", value("a.b", 1), value("a_b", 2), client_id='"} 1\nmoldau_up 0')
    (only,) = lines(snapshot([evil]))
    assert only.startswith('moldau_client_a_b{client_id="\\"} 1\\nmoldau_up 0",')
    assert only.endswith(" 1")


def test_there_are_so_many_series_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_SERIES", 3)
    late = row("late", value("a", 1), value("b", 1), pushed_ms=9)
    early = row("early", value("a", 1), value("b", 1), pushed_ms=1)
    found = lines(snapshot([early, late]))
    assert len(found) == 3
    assert sum('"late"' in each for each in found) == 2


# --- beside the members of a group ---


def member(member_id: str, client_id: str = "c", host: str = "10.0.0.1") -> GroupMember:
    return GroupMember(member_id, None, client_id, host, {}, None, "classic")


def of(rows: list[ClientRow], *members: GroupMember) -> list[tuple[str, str]]:
    found = measures(snapshot(rows), "g", members, 3000)
    return [(each.instance_id, each.member_id) for each in found]


def test_a_client_that_says_which_member_it_is_is_that_one() -> None:
    said = {"group_id": "g", "group_member_id": "m2"}
    assert of([row("i", resource=said)], member("m1"), member("m2")) == [("i", "m2")]
    assert of([row("i", resource=said)], member("m1")) == []


def test_others_are_found_by_client_id_and_address() -> None:
    assert of([row("i")], member("m", "c", "10.0.0.1"), member("n", "d")) == [("i", "m")]
    assert of([row("i")], member("m", "c", "10.0.0.2")) == []
    assert of([row("i", resource={"group_id": "other"})], member("m")) == []
    assert of([row("i", is_over=True)], member("m")) == []
    # Two members look alike: it is one of them.
    assert of([row("i")], member("m1"), member("m2")) == [("i", "")]


def test_the_worst_node_is_shown() -> None:
    name = "consumer.node.request.latency.avg"
    client = row(
        "i",
        value(name, 2, node_id="0"),
        value(name, 31.25, node_id="1"),
        value("consumer.poll.idle.ratio.avg", 0.344),
    )
    (found,) = measures(snapshot([client]), "g", [member("m")], 3000)
    assert found.shown == {"poll idle": "34%", "requests": "31.2 ms"}
    assert found.seconds_ago == 2
    assert (f"{name} node_id=1", "31.25") in found.every
