"""A mirror that runs: threads that copy, and a loop that follows topics, groups and ACLs.

`Mirror.tick` does what is due and returns; the command calls it again and again, and shows
`Mirror.report` in between. Nothing is kept on disk: where a partition goes on follows from the end
of its log, and which topics are mirrored from their marks. So a mirror may be killed at any time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from zlib import crc32

from moldau.ops.client import ClientError, Cluster, TopicPartition
from moldau.ops.mirror.acls import Acls
from moldau.ops.mirror.copying import Copier
from moldau.ops.mirror.cut_over import Grown, cut_over
from moldau.ops.mirror.groups import Groups
from moldau.ops.mirror.partition import PartitionMirror
from moldau.ops.mirror.report import Report, report_of
from moldau.ops.mirror.topics import Topics

TOPICS_EVERY_S = 5.0
CONFIGS_EVERY_S = 30.0
GROUPS_EVERY_S = 5.0
ACLS_EVERY_S = 60.0
LONGER = 4  # times what it took
SETTLED_S = 3.0  # so long no end may change before topics are cut over

Open = Callable[[], Cluster]


class Due:
    """Something that is done now and then."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    def done(self, took_s: float = 0.0) -> None:
        """`took_s`: what takes long is done less often."""
        self._next = time.monotonic() + max(self._every_s, LONGER * took_s)

    def now(self) -> None:
        self._next = 0.0


class Mirror:
    """`open_source` and `open_target` make a client of either cluster, one for each thread."""

    def __init__(
        self,
        open_source: Open,
        open_target: Open,
        topics: re.Pattern[str],
        groups: re.Pattern[str] | None,
        *,
        acls: bool,
        threads: int,
    ) -> None:
        """`groups`: None copies no offsets."""
        self._open_source, self._open_target = open_source, open_target
        self._source: Cluster | None = None
        self._target: Cluster | None = None
        self.topics = Topics(topics)
        self.groups = None if groups is None else Groups(groups)
        self.acls = Acls(topics) if acls else None
        self.aborted = 0  # transactions that a cut-over found open
        self.grown: list[Grown] = []
        self.trouble: str | None = None
        self._copiers = [
            Copier(f"mirror-{number}", open_source, open_target) for number in range(threads)
        ]
        self._topics_due, self._configs_due = Due(TOPICS_EVERY_S), Due(CONFIGS_EVERY_S)
        self._groups_due, self._acls_due = Due(GROUPS_EVERY_S), Due(ACLS_EVERY_S)
        self._has_listed = False
        self._settled: tuple[dict[TopicPartition, int | None], float] | None = None

    # --- lifetime ---

    def start(self) -> None:
        for copier in self._copiers:
            copier.start()

    def close(self) -> None:
        for copier in self._copiers:
            copier.stop()
        for copier in self._copiers:
            if copier.ident is not None:
                copier.join(timeout=10)
        self._close_clusters()

    def _close_clusters(self) -> None:
        for cluster in (self._source, self._target):
            if cluster is not None:
                cluster.close()
        self._source = self._target = None

    def _clusters(self) -> tuple[Cluster, Cluster]:
        if self._source is None:
            self._source = self._open_source()
        if self._target is None:
            self._target = self._open_target()
        return self._source, self._target

    # --- what is due ---

    def tick(self) -> None:
        """Do what is due. A cluster that cannot be reached is `trouble`, and tried again."""
        for copier in self._copiers:
            if copier.defect is not None:
                raise copier.defect
        try:
            self._follow()
        except ClientError as fault:
            self._fail(fault)
        else:
            self.trouble = None

    def _follow(self) -> None:
        source, target = self._clusters()
        if self._topics_due.is_due():
            with_configs = self._configs_due.is_due()
            self.topics.sync(source, target, with_configs=with_configs)
            self._topics_due.done()
            if with_configs:
                self._configs_due.done()
            self._has_listed = True
            self._share_out()
        self._note_refused()
        if self.acls is not None and self._acls_due.is_due():
            self.acls.sync(source, target)
            self._acls_due.done()
        if self._groups_due.is_due():
            self._copy_groups(source, target)

    def _copy_groups(self, source: Cluster, target: Cluster) -> None:
        began = time.monotonic()
        if self.groups is not None:
            ends = {one.place: one.at for one in self._partitions()}
            self.groups.sync(source, target, ends.get)
        self._groups_due.done(time.monotonic() - began)

    def _partitions(self) -> list[PartitionMirror]:
        """Those that are mirrored."""
        return [one for topic in self.topics.live for one in topic.partitions]

    def _share_out(self) -> None:
        """Each partition has one thread, always the same."""
        shares: list[list[PartitionMirror]] = [[] for _ in self._copiers]
        for topic in self.topics.live:
            if topic.is_ending:
                continue
            first = crc32(topic.name.encode())
            for one in topic.partitions:
                shares[(first + one.place.partition) % len(shares)].append(one)
        for copier, share in zip(self._copiers, shares, strict=True):
            copier.partitions = tuple(share)

    def _note_refused(self) -> None:
        """A topic of which one partition cannot be mirrored is not mirrored."""
        for topic in self.topics.live:
            for one in topic.partitions:
                if one.refused is not None:
                    topic.refuse(f"partition {one.place.partition}: {one.refused}")
                    break

    # --- how far it is ---

    @property
    def is_level(self) -> bool:
        """Is everything here that the source had a moment ago?"""
        return (
            self._has_listed
            and self.trouble is None
            and all(one.is_level for one in self._partitions() if not self._is_ending(one))
        )

    def _is_ending(self, one: PartitionMirror) -> bool:
        return self.topics.by_name[one.place.topic].is_ending

    @property
    def is_over(self) -> bool:
        """Nothing is left to mirror."""
        return self._has_listed and self.trouble is None and not self.topics.live

    def report(self) -> Report:
        troubles = [copier.trouble for copier in self._copiers if copier.trouble]
        return report_of(
            self.topics, self.groups, self.acls, self.trouble or next(iter(troubles), None)
        )

    # --- the end ---

    def try_end(self) -> bool:
        """End for now, if everything is here: committed offsets are copied once more."""
        if not self.is_level:
            return False
        try:
            self._copy_groups(*self._clusters())
        except ClientError as fault:
            self._fail(fault)
            return False
        return True

    def _fail(self, fault: ClientError) -> None:
        self.trouble = str(fault)
        self._close_clusters()

    def try_cut_over(self) -> bool:
        """Cut over all topics if nothing has changed for a while; True when it is done."""
        now = time.monotonic()
        ends = {one.place: one.source_end for one in self._partitions()}
        if not self.is_level:
            self._settled = None
            return False
        if self._settled is None or self._settled[0] != ends:
            self._settled = (ends, now)
            return False
        if now - self._settled[1] < SETTLED_S:
            return False
        try:
            return self._cut_over()
        except ClientError as fault:
            self._fail(fault)
            return False

    def _cut_over(self) -> bool:
        source, target = self._clusters()
        self._copy_groups(source, target)
        self.grown = []
        for topic in self.topics.live:
            grown, aborted = cut_over(source, target, topic)
            self.grown += grown
            self.aborted += aborted
        self._settled = None
        if self.grown:
            self._topics_due.now()
            return False
        return True
