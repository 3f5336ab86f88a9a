"""The tail cache against a model: contiguous, within its budget, the oldest goes first."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from moldau.broker.log.state.view import CachedEntry, Tail, TailCache

BUDGET = 1_000


def entry(base: int, records: int, size: int) -> CachedEntry:
    return CachedEntry(base, base + records, size, (b"%d" % base,))


@dataclass
class Model:
    """What a tail should hold: (entry, when it was added)."""

    tail: Tail
    end: int = 0
    held: list[tuple[CachedEntry, int]] = field(default_factory=list)


class TailMachine(RuleBasedStateMachine):
    @initialize(tails=st.integers(1, 4))
    def start(self, tails: int) -> None:
        self.cache = TailCache(BUDGET)
        self.models = [Model(self.cache.tail()) for _ in range(tails)]
        self.clock = 0

    def _model(self, choice: int) -> Model:
        return self.models[choice % len(self.models)]

    def _evict(self) -> None:
        while sum(kept.size for model in self.models for kept, _ in model.held) > BUDGET:
            oldest = min((m for m in self.models if m.held), key=lambda model: model.held[0][1])
            del oldest.held[0]

    @rule(choice=st.integers(0, 9), records=st.integers(1, 3), size=st.integers(1, 400))
    def add(self, choice: int, records: int, size: int) -> None:
        model = self._model(choice)
        self.clock += 1
        added = entry(model.end, records, size)
        model.tail.add(added)
        model.held.append((added, self.clock))
        model.end += records
        self._evict()

    @rule(choice=st.integers(0, 9), records=st.integers(1, 3))
    def add_many_small(self, choice: int, records: int) -> None:
        for _ in range(150):  # beyond where lists are shortened
            self.add(choice, records, 3)

    @rule(choice=st.integers(0, 9), gap=st.integers(1, 5), size=st.integers(1, 400))
    def add_after_a_gap(self, choice: int, gap: int, size: int) -> None:
        """An entry that does not continue the tail replaces it: a hole is never served."""
        model = self._model(choice)
        model.held.clear()
        model.end += gap
        self.add(choice, 1, size)

    @rule(choice=st.integers(0, 9))
    def clear(self, choice: int) -> None:
        model = self._model(choice)
        model.tail.clear()
        model.held.clear()

    @rule(choice=st.integers(0, 9), back=st.integers(0, 12))
    def drop_before(self, choice: int, back: int) -> None:
        """Entries that end at or below an offset go."""
        model = self._model(choice)
        offset = max(model.end - back, 0)
        model.tail.drop_before(offset)
        model.held = [item for item in model.held if item[0].end > offset]

    @rule(choice=st.integers(0, 9), back=st.integers(-2, 20))
    def find(self, choice: int, back: int) -> None:
        model = self._model(choice)
        offset = model.end - back
        index = model.tail.find(offset)
        if not model.held or offset < model.held[0][0].base:
            assert index is None
            return
        assert index is not None
        expected = [kept for kept, _ in model.held if kept.end > offset] or [model.held[-1][0]]
        found = []
        while (kept := model.tail.entry(index)) is not None:
            found.append(kept)
            index += 1
        assert found == expected

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert self.cache.size == sum(kept.size for model in self.models for kept, _ in model.held)
        assert self.cache.size <= BUDGET
        for model in self.models:
            assert model.tail.start == (model.held[0][0].base if model.held else None)


TailMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestTail = TailMachine.TestCase


def test_an_entry_larger_than_the_budget_is_not_kept() -> None:
    cache = TailCache(BUDGET)
    tail = cache.tail()
    tail.add(entry(0, 1, 10))
    tail.add(entry(1, 1, BUDGET + 1))
    assert cache.size == 0
    assert tail.start is None
    tail.add(entry(2, 1, 10))
    assert tail.start == 2


def test_nothing_is_kept_without_a_budget() -> None:
    cache = TailCache(0)
    tail = cache.tail()
    for number in range(1_000):
        tail.add(entry(number, 1, 5))
    assert cache.size == 0
    assert tail.find(999) is None


@pytest.mark.parametrize("tails", [1, 50])
def test_what_is_kept_for_order_does_not_grow(tails: int) -> None:
    """Clearing over and over must not leave notes behind for entries that are gone."""
    cache = TailCache(BUDGET)
    kept = [cache.tail() for _ in range(tails)]
    ends = [0] * tails
    for number in range(20_000):
        which = number % tails
        kept[which].add(entry(ends[which], 1, 1))
        ends[which] += 1
        if number % 7 == 0:
            kept[which].clear()
    assert cache.size <= BUDGET
    assert len(cache._order) <= 4 * BUDGET
