"""The budget of bytes that connections share: nothing leaks, no waiter is forgotten."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from moldau.broker.server.limits import Budget

TOTAL = 1_000


class Waiting:
    """A paused connection; what it does when notified is the test's choice."""

    def __init__(self, budget: Budget, takes: int) -> None:
        self._budget = budget
        self._takes = takes
        self.notified = 0

    def ease(self) -> None:
        self.notified += 1
        if self._budget.exhausted:
            self._budget.wait(self)
        elif self._takes:
            self._budget.take(self._takes)


class BudgetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(TOTAL, TOTAL)
        self.taken: list[int] = []
        self.waiting: list[Waiting] = []

    @rule(size=st.integers(1, 600))
    def take(self, size: int) -> None:
        self.budget.take(size)
        self.taken.append(size)

    @rule()
    def wait(self) -> None:
        if self.budget.exhausted:
            waiter = Waiting(self.budget, 0)
            self.waiting.append(waiter)
            self.budget.wait(waiter)
            self.budget.wait(waiter)  # twice is once

    @rule()
    def leave(self) -> None:
        if self.waiting:
            self.budget.leave(self.waiting.pop())

    @rule(index=st.integers(0, 100))
    def give_back(self, index: int) -> None:
        if not self.taken:
            return
        size = self.taken.pop(index % len(self.taken))
        before = [waiter.notified for waiter in self.waiting]
        self.budget.give_back(size)
        if self.budget.used * 4 < TOTAL * 3:
            assert [waiter.notified for waiter in self.waiting] == [count + 1 for count in before]
            self.waiting.clear()
        else:
            assert [waiter.notified for waiter in self.waiting] == before

    @invariant()
    def counts(self) -> None:
        assert self.budget.used == sum(self.taken)
        assert self.budget.exhausted == (sum(self.taken) >= TOTAL)


TestBudget = BudgetMachine.TestCase


def test_notified_waiters_can_take_so_much_that_the_others_keep_waiting() -> None:
    budget = Budget(TOTAL, TOTAL)
    budget.take(TOTAL)
    waiters = [Waiting(budget, 400) for _ in range(5)]
    for waiter in waiters:
        budget.wait(waiter)
    budget.give_back(TOTAL)
    assert [waiter.notified for waiter in waiters] == [1, 1, 0, 0, 0]
    budget.give_back(400)
    assert [waiter.notified for waiter in waiters] == [1, 1, 1, 0, 0]


@given(st.lists(st.integers(0, 3 * TOTAL), max_size=30))
def test_there_is_always_room_for_some_reply_and_never_for_all_at_once(sizes: list[int]) -> None:
    budget = Budget(1 << 28, 1 << 28)
    everything = budget.reply_room
    assert everything < budget.total
    for size in sizes:
        before = budget.reply_room
        budget.hold(size << 16)
        assert 0 < budget.reply_room <= before
    for size in sizes:
        budget.release(size << 16)
    assert budget.reply_room == everything


def test_replies_that_each_take_all_they_may_stay_within_the_budget() -> None:
    budget = Budget(1 << 28, 1 << 28)
    for _ in range(50):
        budget.hold(budget.reply_room)
    assert budget.held < budget.total * 1.1
