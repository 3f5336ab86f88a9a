"""The assignors (8.10, 8.11), by their properties."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.broker.group.assign.assignors import ASSIGNORS
from moldau.broker.group.assign.job import Job, Seat
from moldau.broker.group.topics import TopicFacts, TopicIdPartition
from tests.support.drivers.group_world import completed

Targets = dict[str, frozenset[TopicIdPartition]]


def assign(
    name: str,
    subscriptions: Sequence[Sequence[str]],
    topics: dict[str, int],
    before: Targets | None = None,
) -> Targets:
    """Run an assignor for members m0, m1, ... that subscribe to these topics."""
    facts = tuple(TopicFacts(one, one.encode(), count) for one, count in sorted(topics.items()))
    seats = tuple(
        Seat(f"m{n}", None, frozenset(names), (before or {}).get(f"m{n}", frozenset()))
        for n, names in enumerate(subscriptions)
    )
    return dict(completed(Job("g", 1, ASSIGNORS[name], seats, facts).steps()))


def everything(topics: dict[str, int]) -> list[TopicIdPartition]:
    return [(name.encode(), number) for name, count in topics.items() for number in range(count)]


topics_of = st.dictionaries(st.sampled_from("tuvw"), st.integers(0, 9), min_size=1)


@settings(deadline=None)
@given(topics=topics_of, members=st.integers(1, 8))
def test_8_10_equal_subscriptions_get_equal_shares(topics: dict[str, int], members: int) -> None:
    found = assign("uniform", [list(topics)] * members, topics)
    sizes = [len(target) for target in found.values()]
    assert max(sizes) - min(sizes) <= 1
    assert sorted(place for target in found.values() for place in target) == sorted(
        everything(topics)
    )


@settings(deadline=None)
@given(topics=topics_of, members=st.integers(1, 8))
def test_8_10_a_join_moves_what_it_must(topics: dict[str, int], members: int) -> None:
    before = assign("uniform", [list(topics)] * members, topics)
    after = assign("uniform", [list(topics)] * (members + 1), topics, before)
    moved = sum(len(before[name] - after[name]) for name in before)
    assert moved == len(after[f"m{members}"])


@settings(deadline=None)
@given(topics=topics_of, members=st.integers(2, 8))
def test_8_10_a_leave_moves_the_leavers_partitions_only(
    topics: dict[str, int], members: int
) -> None:
    before = assign("uniform", [list(topics)] * members, topics)
    after = assign("uniform", [list(topics)] * (members - 1), topics, before)
    for name, target in after.items():
        assert before[name] <= target


@settings(deadline=None)
@given(
    topics=topics_of,
    subscriptions=st.lists(st.lists(st.sampled_from("tuvw"), unique=True), min_size=1, max_size=7),
    data=st.data(),
)
def test_8_10_different_subscriptions_are_balanced(
    topics: dict[str, int], subscriptions: list[list[str]], data: st.DataObject
) -> None:
    before = assign("uniform", subscriptions, topics)
    changed = data.draw(st.permutations(subscriptions))
    for found, of in (
        (before, subscriptions),
        (assign("uniform", changed, topics, before), changed),
    ):
        holders = {place: name for name, target in found.items() for place in target}
        assert len(holders) == sum(map(len, found.values()))
        for topic, number in everything(topics):
            those = [f"m{n}" for n, names in enumerate(of) if topic.decode() in names]
            holder = holders.get((topic, number))
            assert (holder in those) if those else holder is None
            for other in those:
                assert holder is not None
                assert len(found[holder]) - len(found[other]) < 2


def test_8_10_nothing_moves_without_a_reason() -> None:
    topics = {"t": 7, "u": 5}
    subscriptions = [["t"], ["t", "u"], ["u"], ["t", "u"]]
    before = assign("uniform", subscriptions, topics)
    assert assign("uniform", subscriptions, topics, before) == before


def test_8_11_contiguous_and_the_same_for_topics_of_equal_size() -> None:
    topics = {"t": 5, "u": 5}
    found = assign("range", [["t", "u"]] * 2, topics)
    assert sorted(n for topic, n in found["m0"] if topic == b"t") == [0, 1, 2]
    for target in found.values():
        assert {n for topic, n in target if topic == b"t"} == {
            n for topic, n in target if topic == b"u"
        }


def test_8_11_static_members_first() -> None:
    facts = (TopicFacts("t", b"t", 3),)
    names = frozenset({"t"})
    seats = (
        Seat("a", None, names, frozenset()),
        Seat("z", "i2", names, frozenset()),
        Seat("b", "i1", names, frozenset()),
    )
    found = completed(Job("g", 1, ASSIGNORS["range"], seats, facts).steps())
    assert found == {name: frozenset({(b"t", n)}) for n, name in enumerate(("b", "z", "a"))}


def test_8_8_large_targets_are_computed_in_small_slices() -> None:
    """No slice does more than a small part of the work."""
    topics = {f"t{n:02}": 100 for n in range(50)}
    facts = tuple(TopicFacts(name, name.encode(), count) for name, count in topics.items())
    all_names = frozenset(topics)
    for names in (all_names, all_names - {"t00"}):
        seats = tuple(
            Seat(f"m{n}", None, names if n % 2 else all_names, frozenset()) for n in range(500)
        )
        steps = sum(1 for _ in Job("g", 1, ASSIGNORS["uniform"], seats, facts).steps())
        assert steps > 50
