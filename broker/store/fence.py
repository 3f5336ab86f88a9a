"""The fence of a slot: one owner writes, and what others send, late or asleep, is refused.

Every script that writes something of a slot has the slot's key as its first and the epoch under
which it was taken as its first argument. How slots are taken is in groups.py.
"""

from __future__ import annotations

from moldau.broker.errors import StoreFenced


def fenced(slot: int) -> StoreFenced:
    return StoreFenced(f"slot {slot} has been taken by another worker, or the store forgot it")
