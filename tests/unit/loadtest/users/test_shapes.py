"""The shapes of a load: users by time."""

import itertools

import pytest

from moldau.loadtest.users.client.schedule import Schedule
from moldau.loadtest.users.shapes import SHAPES, chosen_shape


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_shape_stays_between_one_and_all(name: str) -> None:
    for users in (1, 7, 200):
        counts = [SHAPES[name](second, 60, users) for second in range(60)]
        assert max(counts) == users, name
        assert min(counts) >= 1


def test_what_they_look_like() -> None:
    def counts(name: str) -> list[int]:
        return [SHAPES[name](second, 60, 100) for second in range(60)]

    assert set(counts("steady")) == {100}
    assert counts("ramp") == sorted(counts("ramp"))
    assert counts("ramp")[0] == 10
    assert counts("ramp")[45] == 100
    assert [counts("spike")[second] for second in (0, 30, 59)] == [20, 100, 20]
    assert [counts("churn")[second] for second in (0, 12, 25)] == [100, 50, 100]


def test_one_is_chosen_by_the_command_line_or_the_environment() -> None:
    assert chosen_shape(["locust", "--shape", "ramp"], "spike") == "ramp"
    assert chosen_shape(["locust", "--shape=churn"], None) == "churn"
    assert chosen_shape(["locust"], "spike") == "spike"
    assert chosen_shape(["locust"], None) is None


def test_what_is_overdue_is_not_put_off() -> None:
    schedule = Schedule(1e6)
    due = [schedule.wait() for _ in range(100)]
    steps = [after - before for before, after in itertools.pairwise(due)]
    assert steps == pytest.approx([1e-6] * 99)
    with pytest.raises(ValueError):
        Schedule(0)
