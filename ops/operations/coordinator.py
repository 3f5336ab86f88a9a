"""The coordinator of a group or a transactional id, as results name it."""

from __future__ import annotations

import msgspec

from moldau.ops.client import Node


class Coordinator(msgspec.Struct, frozen=True):
    id: int
    address: str

    @classmethod
    def of(cls, node: Node) -> Coordinator:
        return cls(node.node_id, node.address)
