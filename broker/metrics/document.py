"""The metrics and tables of a worker or a router, as one document, collected on request (METRICS).

The objects that do the work count in plain integers. A process turns them into families of samples
only when the HTTP process (ops/http) asks for them: that one adds the name of the process, joins
the tables of groups and partitions, and writes Prometheus' text format.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


# Rows and samples come in tens of thousands, hold no cycles, and would keep the garbage collector
# busy: gc=False.
class Sample(msgspec.Struct, array_like=True, frozen=True, gc=False):
    labels: tuple[str, ...]  # values, in the order of the family's labels
    value: float


class HistogramSample(msgspec.Struct, array_like=True, frozen=True):
    labels: tuple[str, ...]
    counts: list[int]  # by bucket, not cumulated; the last one has no upper bound
    total: float  # the sum of what was observed


class Family(msgspec.Struct, array_like=True, frozen=True):
    """All samples of one metric in one process."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    samples: list[Sample] = []
    histograms: list[HistogramSample] = []
    bounds: list[float] = []  # of the buckets of histograms; one fewer than counts
    # Workers and routers report it: the label is role and index, not `worker` alone.
    by_role: bool = False


class PartitionRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A partition, as its leader knows it."""

    topic: str
    partition: int
    start: int
    end: int
    size: int
    leader: int
    records: int = 0
    added: int = 0  # records ever appended
    # False for native topics: offsets do not count records, so ask the leader (RECORD_COUNTS).
    has_consecutive_offsets: bool = True
    gaps: tuple[tuple[int, int], ...] = ()  # offsets without records: the first, the one behind
    epochs: tuple[tuple[int, int], ...] = ()  # leader epochs after 0: number, first offset

    def count(self, first: int, after: int) -> int:
        """Count the offsets from `first` to before `after` that have records."""
        return count_records(self.gaps, first, after)


def count_records(gaps: Iterable[tuple[int, int]], first: int, after: int) -> int:
    """Count the offsets from `first` to before `after` that are in none of the gaps."""
    missing = (min(end, after) - max(begin, first) for begin, end in gaps)
    return max(after - first - sum(size for size in missing if size > 0), 0)


class CommittedRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    topic: str
    partition: int
    offset: int


class GroupRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A group, as its coordinator knows it."""

    group: str
    state: str
    members: int
    committed: list[CommittedRow]
    # Kafka's protocol has no field for these.
    identity: str = ""
    generation: int = -1


class ClientValue(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A number that a client measured."""

    name: str  # without org.apache.kafka.
    attributes: tuple[tuple[str, str], ...]
    value: float
    is_counter: bool


class ClientRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A client that pushes its metrics (KIP-714), and its last push."""

    instance_id: str
    client_id: str
    host: str
    software_name: str
    software_version: str
    pushed_ms: int  # milliseconds since 1970
    resource: dict[str, str]  # the client's labels: group_id, group_member_id …
    is_over: bool  # it will not push again
    values: list[ClientValue]


class Document(msgspec.Struct, frozen=True, omit_defaults=True):
    is_ready: bool = True  # False: requests that need the store would fail
    families: list[Family] = []
    partitions: list[PartitionRow] = []
    groups: list[GroupRow] = []
    clients: list[ClientRow] = []
