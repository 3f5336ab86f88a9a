"""Things by id and by slot, and what is answered for slots that are not loaded."""

from __future__ import annotations

from moldau.broker.errors import ErrorCode
from moldau.broker.machine import SlotTable


class Words(SlotTable[str]):
    """A word's slot is its length."""

    def __init__(self) -> None:
        super().__init__(len)
        for slot in (1, 2):
            self.start_loading(slot)
            self._finish_loading(slot)
        for word in ("a", "b", "cc"):
            self.put(word, word.upper())

    def give_up(self, slot: int) -> list[str]:
        return self._give_up(slot)


def test_both_indexes_agree() -> None:
    words = Words()
    assert words.of_slot(1) == ["A", "B"]
    words.drop("a")
    words.put("b", "BB")
    assert (words.of_slot(1), words.of_slot(2), words.of_slot(3)) == (["BB"], ["CC"], [])
    assert words.by_id == {"b": "BB", "cc": "CC"}


def test_a_slot_that_is_given_up_takes_its_own_with_it() -> None:
    words = Words()
    assert words.give_up(1) == ["A", "B"]
    assert words.give_up(1) == []
    assert words.by_id == {"cc": "CC"}
    assert not words.is_loaded(1)
    assert words.availability("a") is ErrorCode.NOT_COORDINATOR
    assert words.availability("cc") is ErrorCode.NONE


def test_loading() -> None:
    words = Words()
    assert words.loading() is ErrorCode.NONE
    words.start_loading(3)
    assert words.loading() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert words.availability("ddd") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert words.availability_of_slot(4) is ErrorCode.NOT_COORDINATOR
