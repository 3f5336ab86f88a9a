"""Counters of a worker's logs: appends, conflicts, the tail cache, bytes by topic."""

from __future__ import annotations

from moldau.broker.metrics.document import Family, HistogramSample, Kind, Sample
from moldau.broker.metrics.histogram import DurationHistogram, duration_family, new_counts

BATCH_BOUNDS = [float((1 << bits) - 1) for bits in range(1, 12)]
MAX_TOPICS = 5_000  # with counters of their own


class TopicCounters:
    """The counters of one topic in this worker."""

    __slots__ = ("bytes_out", "refused")

    def __init__(self) -> None:
        self.bytes_out = 0
        self.refused: dict[str, int] = {}  # batches, by the name of the error


class LogCounters:
    __slots__ = ("append", "batches", "conflicts", "hits", "misses", "refused_full", "topics")

    def __init__(self) -> None:
        self.append = new_counts()  # entries, by the bits of their duration in nanoseconds
        self.batches = new_counts()  # entries, by the bits of their number of batches
        self.conflicts = 0
        self.hits = self.misses = 0
        self.refused_full = 0
        self.topics: dict[str, TopicCounters] = {}

    def topic(self, name: str) -> TopicCounters:
        found = self.topics.get(name)
        if found is None:
            found = TopicCounters()
            if len(self.topics) < MAX_TOPICS:
                self.topics[name] = found
        return found

    def families(self, cache_bytes: int) -> list[Family]:
        topics = self.topics.items()
        batches = sum(count * 0.75 * (1 << bits) for bits, count in enumerate(self.batches))
        most = len(BATCH_BOUNDS)
        shown = [*self.batches[1 : most + 1], sum(self.batches[most + 1 :])]
        return [
            duration_family("moldau_append_duration_seconds",
                            "From the sending of an entry to the store's reply.", (),
                            [DurationHistogram(self.append).sample()]),
            Family("moldau_append_batches", Kind.HISTOGRAM,
                   "Batches that went into one entry (group commit).", (),
                   histograms=[HistogramSample((), shown, batches)],
                   bounds=BATCH_BOUNDS),
            Family("moldau_append_conflicts_total", Kind.COUNTER,
                   "Appends refused because another worker came first.", (),
                   [Sample((), self.conflicts)]),
            Family("moldau_store_writes_refused_total", Kind.COUNTER,
                   "Appends refused because the store is full.", (),
                   [Sample((), self.refused_full)]),
            Family("moldau_tail_cache_bytes", Kind.GAUGE, "Bytes in the tail cache.", (),
                   [Sample((), cache_bytes)]),
            Family("moldau_tail_cache_hits_total", Kind.COUNTER, "Reads from memory.", (),
                   [Sample((), self.hits)]),
            Family("moldau_tail_cache_misses_total", Kind.COUNTER, "Reads from the store.", (),
                   [Sample((), self.misses)]),
            Family("moldau_topic_bytes_out_total", Kind.COUNTER, "Bytes fetched.", ("topic",),
                   [Sample((name,), each.bytes_out) for name, each in topics]),
            Family("moldau_topic_batches_refused_total", Kind.COUNTER, "Batches refused.",
                   ("topic", "error"),
                   [Sample((name, error), count) for name, each in topics
                    for error, count in each.refused.items()]),
        ]  # fmt: skip
