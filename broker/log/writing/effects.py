"""The effects of a partition's writer: what it asks of its shell, and the events that answer."""

from __future__ import annotations

from typing import Protocol

from moldau.broker.log.writing.append import InFlightEntry


class Reserved(Protocol):
    """Offsets that this worker may use: see reservation.py."""

    ceiling: int
    extend_at: int


class Effects(Protocol):
    """What the machine asks of its shell, and the event that answers it."""

    def end_turn(self) -> object:
        """At the end of this turn of the event loop: `turn_ended`."""

    def send(self, entry: InFlightEntry) -> None:
        """Append an entry at its base offset: `replied`."""

    def read(self, offset: int, count: int) -> None:
        """Read entries: `entries_read`."""

    def load(self) -> None:
        """Load the log: `state_loaded`, then `loaded`; or `load_failed`."""

    def reserve(self, end: int) -> None:
        """Reserve offsets beyond `end`: `reserved`."""

    def find(self, entry: InFlightEntry) -> None:
        """Read what stands at its place, as soon as the store answers: `found`."""

    def recover(self, entry: InFlightEntry) -> None:
        """Load the log, then read what stands at its place: `state_loaded`, `recovered`."""

    def appended(self, entry: InFlightEntry) -> None:
        """An entry of ours is in the log and in its state."""

    def conflict(self) -> None:
        """Another worker has appended first."""

    def refused(self, entry: InFlightEntry, fault: BaseException) -> None:
        """The store has refused an entry for a reason of its own."""

    def wake_leader(self) -> None:
        """Notify the leader of an append; the notice that went with it may be lost."""

    def stream_missing(self) -> None:
        """The log has no stream, so its topic was deleted: `gone`."""

    def ready(self) -> None:
        """The log has been loaded."""
