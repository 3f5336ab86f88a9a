"""Why a group is written. There is one write at a time; later wishes share the next one.

This preserves the order in which records reach the store, and turns a thousand static members that
restart at once into a few writes.
"""

from __future__ import annotations

from msgspec import Struct


class WriteReason(Struct, frozen=True):
    """Why the group is written. A protocol adds its own."""


class SaveGroup(WriteReason, frozen=True):
    """The group is new or has become Empty, or a failed write left the store in doubt. No request
    waits for this."""


class DeleteGroup(WriteReason, frozen=True):
    """The group is to be removed."""

    call: object | None
    """None: the client was answered when the first attempt failed, this is another one."""
