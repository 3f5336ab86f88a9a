"""Leader epochs and gaps of partitions, from the state of their logs in the store.

Kafka's protocol tells the current epoch, and nothing of where an older one began. Only the logs of
partitions with an epoch above 0 are asked for: others have no gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.broker.errors import StoreFault
from moldau.broker.log.epochs import EPOCH_ZERO, Epochs
from moldau.broker.store import keys
from moldau.ops.client import Cluster, TopicPartition
from moldau.ops.operations.local_store import open_store

if TYPE_CHECKING:
    from moldau.broker.store.blocking import BlockingStore

Found = dict[TopicPartition, Epochs | None]


def epochs_of(cluster: Cluster, current: dict[TopicPartition, int]) -> Found:
    """Of partitions, given their current epochs; None: the store cannot be asked from here."""
    raised = [place for place, epoch in current.items() if epoch > 0]
    found: Found = dict.fromkeys(current, EPOCH_ZERO) | dict.fromkeys(raised)
    if raised:
        with open_store(cluster.bootstrap.port, cluster.metadata().cluster_id) as store:
            if store is not None:
                found |= {place: _stored(store, place) for place in raised}
    return found


def _stored(store: BlockingStore, place: TopicPartition) -> Epochs | None:
    try:
        record = store.topic_record(place.topic)
        if record is None:
            return None
        log = keys.stream(record.name, record.incarnation, place.partition)
        return Epochs.parse(store.log_epochs(log))
    except (StoreFault, ValueError):
        return None  # all else is worth showing


def shown(epochs: Epochs | None) -> dict[str, Any]:
    """As `describe --json` prints them; null: unknown."""
    if epochs is None:
        return {"epochs": None, "gaps": None}
    return {
        "epochs": [{"epoch": one.number, "start_offset": one.start} for one in epochs.all],
        "gaps": [{"first_offset": first, "last_offset": end - 1} for first, end in epochs.gaps],
    }
