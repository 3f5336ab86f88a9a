"""Brokers and partitions, as they are named to a client."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

Address = tuple[str, int]


class Node(NamedTuple):
    """A broker as Metadata names it."""

    node_id: int
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Coordinator(msgspec.Struct, frozen=True):
    """The coordinator of a group or a transactional id, as results of operations name it."""

    id: int
    address: str

    @classmethod
    def of(cls, node: Node) -> Coordinator:
        return cls(node.node_id, node.address)


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def parse_address(text: str) -> Address:
    """HOST:PORT, the host of an IPv6 address in brackets. Raises ValueError."""
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r}: want HOST:PORT, such as 127.0.0.1:9092")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_addresses(text: str) -> list[Address]:
    """HOST:PORT,HOST:PORT: several bootstrap addresses. Raises ValueError."""
    return [parse_address(one) for one in text.split(",")]
