"""The machines of a worker by name and by slot.

A slot is foreign (another worker owns it), then loading, then loaded. A machine that an
exception left half changed is reloaded from the store: meanwhile only its name is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from moldau.broker.errors import ErrorCode
from moldau.broker.machine.effects import Failed

T = TypeVar("T")


class SlotTable(Generic[T]):
    """Read `by_id` freely; change it with `put` and `drop`."""

    def __init__(self, slot_of: Callable[[str], int]) -> None:
        self._slot_of = slot_of
        self._loaded: dict[int, bool] = {}
        self._by_slot: dict[int, dict[str, T]] = {}
        self.by_id: dict[str, T] = {}
        self._reloading: set[str] = set()

    # --- machines ---

    def put(self, name: str, one: T) -> None:
        self.by_id[name] = one
        self._by_slot.setdefault(self._slot_of(name), {})[name] = one

    def drop(self, name: str) -> None:
        del self.by_id[name]
        del self._by_slot[self._slot_of(name)][name]

    def of_slot(self, slot: int) -> list[T]:
        return list(self._by_slot.get(slot, {}).values())

    # --- failures ---

    @staticmethod
    def guarded(name: str, step: Callable[[], list[Any]]) -> list[Any]:
        """Run a step of one machine among many: its exception must not stop the others."""
        try:
            return step()
        except Exception as defect:
            return [Failed(name, defect)]

    def start_reloading(self, name: str) -> None:
        """Drop a machine that an exception left half changed: the store has the state before."""
        if name in self.by_id:
            self.drop(name)
        self._reloading.add(name)

    def is_reloading(self, name: str) -> bool:
        return name in self._reloading

    # --- slots ---

    def start_loading(self, slot: int) -> None:
        self._loaded[slot] = False

    def _finish_loading(self, slot: int) -> None:
        self._loaded[slot] = True

    def _give_up(self, slot: int) -> list[T]:
        """Make the slot foreign; returns the machines that were in it."""
        self._loaded.pop(slot, None)
        given_up = self._by_slot.pop(slot, {})
        for name in given_up:
            del self.by_id[name]
        self._reloading = {one for one in self._reloading if self._slot_of(one) != slot}
        return list(given_up.values())

    def is_loaded(self, slot: int) -> bool:
        return self._loaded.get(slot, False)

    def availability(self, name: str) -> ErrorCode:
        """NONE if this worker owns the id, known or not; otherwise COORDINATOR_LOAD_IN_PROGRESS or
        NOT_COORDINATOR."""
        if name in self._reloading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self.availability_of_slot(self._slot_of(name))

    def availability_of_slot(self, slot: int) -> ErrorCode:
        loaded = self._loaded.get(slot)
        if loaded is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE if loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def loading(self) -> ErrorCode:
        """COORDINATOR_LOAD_IN_PROGRESS while a list of all would be incomplete."""
        if all(self._loaded.values()) and not self._reloading:
            return ErrorCode.NONE
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
