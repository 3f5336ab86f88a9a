"""The assignor of share groups (9.2), by its properties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.broker.group.assign.job import SLICE, Job, Seat, Table
from moldau.broker.group.assign.simple import SHARE_ASSIGNORS, simple
from moldau.broker.group.topics import TopicFacts, TopicIdPartition
from tests.support.drivers.group_world import completed

Targets = dict[str, frozenset[TopicIdPartition]]
topics_of = st.dictionaries(st.sampled_from("tuvw"), st.integers(0, 9), min_size=1)
subscriptions_of = st.lists(
    st.lists(st.sampled_from("tuvwx"), unique=True), min_size=1, max_size=12
)


def assign(
    subscriptions: Mapping[str, Sequence[str]],
    topics: dict[str, int],
    before: Targets | None = None,
) -> Targets:
    facts = tuple(TopicFacts(one, one.encode(), count) for one, count in sorted(topics.items()))
    seats = tuple(
        Seat(name, None, frozenset(names), (before or {}).get(name, frozenset()))
        for name, names in subscriptions.items()
    )
    return dict(completed(Job("g", 1, SHARE_ASSIGNORS["simple"], seats, facts).steps()))


def members(count: int, topics: dict[str, int]) -> Mapping[str, Sequence[str]]:
    return {f"m{number}": list(topics) for number in range(count)}


def holders(targets: Targets) -> Counter[TopicIdPartition]:
    return Counter(partition for target in targets.values() for partition in target)


def everything(topics: dict[str, int]) -> set[TopicIdPartition]:
    return {(name.encode(), number) for name, count in topics.items() for number in range(count)}


@settings(deadline=None)
@given(topics=topics_of, count=st.integers(1, 40))
def test_9_2_equal_subscriptions_get_equal_shares(topics: dict[str, int], count: int) -> None:
    found = assign(members(count, topics), topics)
    every = everything(topics)
    if not every:
        assert not any(found.values())
        return
    sizes = [len(target) for target in found.values()]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    assert holders(found) == dict.fromkeys(every, -(-count // len(every)))


@settings(deadline=None, max_examples=200)
@given(topics=topics_of, counts=st.lists(st.integers(1, 30), min_size=2, max_size=6))
def test_9_2_others_keep_what_they_can(topics: dict[str, int], counts: list[int]) -> None:
    every = everything(topics)
    before: Targets = {}
    for count, following in pairwise(counts):
        before = assign(members(count, topics), topics, before)
        assert assign(members(count, topics), topics, before) == before
        after = assign(members(following, topics), topics, before)
        if not every:
            return
        sharing = -(-following // len(every))
        stay = {name: target for name, target in before.items() if name in after}
        too_much = sum(max(0, has - sharing) for has in holders(stay).values())
        # Whoever loses a partition and gets another had one that is shared by too many.
        moved = [1 for name in stay if stay[name] - after[name] and after[name] - stay[name]]
        assert len(moved) <= too_much
        size = -(-sharing * len(every) // following)
        for name, target in stay.items():
            if too_much == 0 and len(target) < size:
                assert target <= after[name]
        before = after


@settings(deadline=None, max_examples=200)
@given(topics=topics_of, subscriptions=subscriptions_of, data=st.data())
def test_9_2_different_subscriptions(
    topics: dict[str, int], subscriptions: list[list[str]], data: st.DataObject
) -> None:
    named = {f"m{number}": names for number, names in enumerate(subscriptions)}
    before: Targets = {}
    for _ in range(2):
        found = assign(named, topics, before)
        has = holders(found)
        for name, count in topics.items():
            subscribers = [member for member, names in named.items() if name in names]
            parts = [(name.encode(), number) for number in range(count)]
            for part in parts:
                assert (has[part] > 0) == bool(subscribers)
        for member, names in named.items():
            could = {name for name in names if topics.get(name)}
            assert {topic.decode() for topic, _ in found[member]} <= could
            assert bool(found[member]) == bool(could)
        before = found
        shuffled = data.draw(st.permutations(subscriptions))
        named = {f"m{number}": names for number, names in enumerate(shuffled)}


@pytest.mark.parametrize(("count", "partitions"), [(2_000, 10), (100, 10_000), (1, 10_000)])
def test_large_targets_are_computed_in_small_slices(count: int, partitions: int) -> None:
    topics = (TopicFacts("t", b"t", partitions),)
    seats = [Seat(f"m{number}", None, frozenset("t"), frozenset()) for number in range(count)]
    slices = sum(1 for _ in simple(Table(seats, topics)))
    assert slices >= max(count, partitions) // (2 * SLICE)
