"""What `moldau groups history` prints."""

from __future__ import annotations

from moldau.ops.client import TopicPartition
from moldau.ops.commands.groups_history import _assigned
from moldau.ops.operations.group_history import Film, Span


def test_members_with_the_same_client_id_stay_apart() -> None:
    spans = [
        Span(TopicPartition("orders", partition), member, "rdkafka", "127.0.0.1", 1, 2)
        for partition, member in enumerate(("a", "a", "b"))
    ]
    assert list(_assigned(Film(0, 2, spans, [], [], [])).values()) == [
        ["orders-0", "orders-1"],
        ["orders-2"],
    ]
