"""Which worker serves what: slots and owners of groups, leaders of partitions, coordinators.

Pure, and the same in workers, routers and tools: every process must come to the same answer.
Python's own `hash()` is salted per process and must not be used here.

- **Slots.** `slot = abs(String.hashCode(group id)) % 50`, `owner = slot % workers`, as Kafka maps
  groups to the partitions of `__consumer_offsets`. Transactional ids follow the same rule.
- **Leaders.** A preference only, since any worker can serve any partition: appends that meet in
  one worker are batched there instead of being refused by the store.
- **Coordinators.** The answer to FindCoordinator, given by workers and by the router.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from moldau.broker.errors import ErrorCode, KafkaError
from moldau.broker.settings.processes import Endpoint
from moldau.broker.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

SLOTS = 50
GROUP, TRANSACTION = 0, 1  # FindCoordinator's key types
FIRST_VERSION_WITH_MANY_KEYS = 4
NO_NODE = -1


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, in signed 32-bit arithmetic."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(maxsize=8192)  # the hash loops over characters, and the same ids recur
def slot_of(name: str) -> int:
    """The slot of a group id or transactional id. Kafka's abs: the smallest integer becomes 0."""
    value = java_string_hash(name)
    return (0 if value == -(1 << 31) else abs(value)) % SLOTS


def owner_of(name: str, workers: int) -> int:
    """The worker that coordinates it."""
    return slot_of(name) % workers


def slots_of(worker: int, workers: int) -> range:
    """The slots a worker owns."""
    return range(worker, SLOTS, workers)


def leader_of(topic: str | bytes, partition: int, workers: int) -> int:
    """The worker that leads a partition. `topic` is its name, as text or as encoded on the wire."""
    name = topic.encode() if isinstance(topic, str) else topic
    return (zlib.crc32(name) + partition) % workers


def find_coordinator(
    request: FindCoordinatorRequest,
    version: int,
    brokers: Sequence[Endpoint],
    is_up: Sequence[bool],
    refused: Mapping[str, KafkaError] = MappingProxyType({}),
) -> FindCoordinatorResponse:
    """The coordinators of groups or transactional ids, as advertised to clients.

    `is_up`: which workers are running, as far as the caller knows. `refused`: errors of some of the
    keys.
    """
    keys = [request.key] if version < FIRST_VERSION_WITH_MANY_KEYS else request.coordinator_keys
    found = [
        _refused(key, refused[key])
        if key in refused
        else _coordinator(key, request.key_type, brokers, is_up)
        for key in keys
    ]
    if version >= FIRST_VERSION_WITH_MANY_KEYS:
        return FindCoordinatorResponse(coordinators=found)
    (one,) = found
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _refused(key: str, refusal: KafkaError) -> Coordinator:
    return Coordinator(key, NO_NODE, "", NO_NODE, refusal.code, refusal.message)


def _coordinator(
    key: str, key_type: int, brokers: Sequence[Endpoint], is_up: Sequence[bool]
) -> Coordinator:
    if key_type not in (GROUP, TRANSACTION):
        text = f"there are no coordinators of type {key_type}"
        return Coordinator(key, NO_NODE, "", NO_NODE, ErrorCode.INVALID_REQUEST, text)
    owner = owner_of(key, len(is_up))
    if not is_up[owner]:
        # Clients back off and ask again, instead of connecting to a closed port.
        text = "the coordinator is not running"
        return Coordinator(key, NO_NODE, "", NO_NODE, ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
    # One advertised broker is the router, whichever worker coordinates behind it.
    node = brokers[0] if len(brokers) == 1 else brokers[owner]
    return Coordinator(key, node.node_id, node.host, node.port, 0, None)
