"""Copying batches: fetched as they are from the source, appended at their offsets in Moldau.

A partition has one chunk on its way at a time, and the chunk names the offset at which the log has
to end before it. If its outcome is not known, Moldau is asked where the log ends, and copying goes
on there: so each record is there once, whatever was killed, and two mirrors at once do no harm.

A thread has connections of its own to both clusters. When a cluster cannot be reached it waits and
begins again: a mirror runs until it is stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.batch import Buffer
from moldau.broker.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.broker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.ops.client import (
    EARLIEST,
    LATEST,
    RETRIABLE,
    STALE_LEADER,
    ClientError,
    Cluster,
    Node,
    TopicPartition,
    refusal,
)
from moldau.ops.mirror.partition import STRIKES, PartitionMirror
from moldau.ops.mirror.plan import Bounds, Chunk, Refused, cut_chunks, filler, find_place

FETCH_BYTES = 16 << 20
PARTITION_BYTES = 4 << 20
WAIT_MS = 500
TIMEOUT_MS = 30_000
ALL_REPLICAS = -1
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
FOLLOW_START_EVERY_S = 5.0
EARLIEST_LOCAL = -4  # a timestamp of ListOffsets: what lies before is in tiered storage (KIP-405)
TIERED_WAIT_MS = 10_000  # for a read of tiered storage

Open = Callable[[], Cluster]
# Refusals that do not go away: the batches themselves are at fault, or the topic is not a mirror.
_FINAL = frozenset(
    {
        ErrorCode.INVALID_RECORD,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)


class Copier(threading.Thread):
    """Copies some partitions until it is stopped."""

    def __init__(self, name: str, open_source: Open, open_target: Open) -> None:
        super().__init__(name=name, daemon=True)
        self._open_source, self._open_target = open_source, open_target
        self._stopping = threading.Event()
        self.partitions: tuple[PartitionMirror, ...] = ()  # replaced, never changed
        self.trouble: str | None = None  # why nothing is copied at the moment
        self.defect: BaseException | None = None

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                with self._open_source() as source, self._open_target() as target:
                    copying = Copying(source, target)
                    while not self._stopping.is_set():
                        live = [one for one in self.partitions if one.refused is None]
                        if not live:
                            self._stopping.wait(FIRST_PAUSE_S)
                            continue
                        is_busy = copying.step(live)
                        self.trouble, pause = None, FIRST_PAUSE_S
                        if not is_busy:
                            self._stopping.wait(FIRST_PAUSE_S)
            except ClientError as fault:
                self.trouble = str(fault)
                self._stopping.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)
            except BaseException as fault:
                self.defect = fault
                raise


class Copying:
    """The two clusters, and one round of copying between them. Raises ClientError."""

    def __init__(self, source: Cluster, target: Cluster) -> None:
        self._source = source
        self._target = target

    def step(self, partitions: Collection[PartitionMirror]) -> bool:
        """False: some could not be fetched or appended, which takes a moment to change.

        A partition that fails does not hold up the others: its fault is raised behind them."""
        self._find_places([one for one in partitions if one.at is None])
        by_leader: dict[Node, list[PartitionMirror]] = {}
        for one in partitions:
            if one.at is None or one.refused is not None:
                continue
            try:
                by_leader.setdefault(self._source.leader(one.place), []).append(one)
            except ClientError as fault:
                if fault.code not in RETRIABLE:
                    raise  # a topic that was deleted is seen by who lists them
        failed: ClientError | None = None
        for leader, led in by_leader.items():
            known = {one.place: one.source_end for one in led}
            answers = self._fetch(leader, led, WAIT_MS // len(by_leader))
            for one in led:
                answer = answers.get(one.place)
                if answer is None:
                    continue
                try:
                    self._take(one, answer, known[one.place])
                except ClientError as fault:
                    if not fault.code:
                        raise  # a cluster cannot be reached
                    failed = failed or fault
        if failed is not None:
            raise failed
        return all(one.at is not None for one in partitions)

    # --- where partitions go on ---

    def _find_places(self, partitions: Collection[PartitionMirror]) -> None:
        if not partitions:
            return
        source = _bounds(self._source, partitions)
        target = _bounds(self._target, partitions)
        for one in partitions:
            if one.place not in source or one.place not in target:
                continue  # new, or gone
            there, here = source[one.place], target[one.place]
            one.source_start, one.source_end = there
            one.target_start = here.start
            try:
                one.begin(here.end, find_place(there, here))
                one.strikes = 0
            except Refused as why:
                one.strikes += 1
                if one.strikes >= STRIKES:
                    one.refuse(str(why))

    # --- fetching ---

    def _fetch(
        self, leader: Node, partitions: Collection[PartitionMirror], wait_ms: int
    ) -> dict[TopicPartition, PartitionData]:
        topics: dict[str, list[FetchPartition]] = {}
        for one in partitions:
            wanted = FetchPartition(
                one.place.partition,
                fetch_offset=one.position,
                last_fetched_epoch=one.epoch,
                partition_max_bytes=PARTITION_BYTES,
            )
            topics.setdefault(one.place.topic, []).append(wanted)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=0,
            topics=[FetchTopic(name, partitions=wanted) for name, wanted in topics.items()],
        )
        answer = self._source.call(request, leader)
        if answer.error_code:
            raise refusal("Fetch", answer.error_code)
        return {
            TopicPartition(topic.topic, data.partition_index): data
            for topic in answer.responses
            for data in topic.partitions
        }

    def _take(self, one: PartitionMirror, answer: PartitionData, known_end: int | None) -> None:
        """`known_end`: the source's, as it was known before the request was sent."""
        code = answer.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            one.unknown()
            return
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            one.refuse(str(refusal("the source", code)))
            return
        if code:
            self._source.forget_leader(one.place)
            if code in RETRIABLE:
                return
            raise refusal(f"partition {one.place} of the source", code)
        if answer.diverging_epoch is not None and answer.diverging_epoch.end_offset >= 0:
            one.refuse(
                f"the source has lost its records from offset {answer.diverging_epoch.end_offset} "
                f"on, and they are here up to offset {one.position - 1}: its offsets may name "
                "other records now; delete the topic here, and it is mirrored again"
            )
            return
        one.source_start, one.source_end = answer.log_start_offset, answer.high_watermark
        records = answer.records
        if records and not isinstance(records, list):
            self._append_all(one, records)
        elif known_end is not None and one.at is not None and one.at < known_end:
            self._look_for_hole(one, known_end)
        if one.at is not None and one.may_follow_start(FOLLOW_START_EVERY_S):
            self._follow_start(one)

    def _look_for_hole(self, one: PartitionMirror, end: int) -> None:
        """The source's log ends beyond us, and nothing came. A reply may leave a partition out when
        others fill it: ask for this one alone. If there is nothing below `end`, which the log had
        reached before the request, nothing is left there."""
        found = self._fetch_alone(one, 0)
        if found is not None and not found and self._is_tiered(one):
            found = self._fetch_alone(one, TIERED_WAIT_MS) or None
        if found:
            self._append_all(one, found)
        elif found is not None and one.at is not None and one.at < end:
            self._append(one, filler(one.at, end))

    def _fetch_alone(self, one: PartitionMirror, wait_ms: int) -> Buffer | None:
        """What the source has from here on; None: it does not say."""
        leader = self._source.leader(one.place)
        answer = self._fetch(leader, [one], wait_ms).get(one.place)
        if answer is None or answer.error_code or isinstance(answer.records, list):
            return None
        return answer.records or b""

    def _is_tiered(self, one: PartitionMirror) -> bool:
        """Is what comes next in tiered storage? Kafka answers a read there that takes too long with
        no records and no error: it is no hole, however often."""
        local = self._source.list_offsets({one.place: EARLIEST_LOCAL}).get(one.place)
        return local is None or one.position < local

    # --- appending ---

    def _append_all(self, one: PartitionMirror, records: Buffer) -> None:
        if one.at is None:
            return
        try:
            for chunk in cut_chunks(records, one.at):
                if not self._append(one, chunk):
                    return
        except Refused as why:
            one.refuse(str(why))

    def _append(self, one: PartitionMirror, chunk: Chunk) -> bool:
        """False: the log is to be asked where it ends, or the partition is refused."""
        place = one.place
        data = TopicProduceData(
            place.topic, partition_data=[PartitionProduceData(place.partition, chunk.data)]
        )
        request = ProduceRequest(None, ALL_REPLICAS, TIMEOUT_MS, [data], chunk.at)
        one.unknown()  # until there is an answer
        answer = self._target.call(request, self._target.leader(place))
        result = answer.responses[0].partition_responses[0]
        code = result.error_code
        if code == 0:
            one.appended(chunk)
            return True
        if code in _FINAL:
            one.refuse(str(refusal(f"offset {chunk.at}", code, result.error_message)))
        elif code in STALE_LEADER:
            self._target.forget_leader(place)
        elif code not in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.POLICY_VIOLATION):
            # The latter: it is being cut over, as who follows the topics will see.
            raise refusal(f"partition {place}", code, result.error_message)
        return False

    def _follow_start(self, one: PartitionMirror) -> None:
        """Raise the log start to the source's, as far as the log goes here."""
        place = one.place
        assert one.at is not None
        start = min(one.source_start, one.at)
        if start <= one.target_start:
            return
        wanted = DeleteRecordsPartition(place.partition, start)
        request = DeleteRecordsRequest([DeleteRecordsTopic(place.topic, [wanted])], TIMEOUT_MS)
        answer = self._target.call(request, self._target.leader(place))
        result = answer.topics[0].partitions[0]
        if result.error_code == 0:
            one.target_start = result.low_watermark
        elif result.error_code in RETRIABLE:
            self._target.forget_leader(place)
        else:
            one.refuse(str(refusal("the log start cannot be raised", result.error_code)))


def _bounds(
    cluster: Cluster, partitions: Collection[PartitionMirror]
) -> dict[TopicPartition, Bounds]:
    starts = cluster.list_offsets({one.place: EARLIEST for one in partitions})
    ends = cluster.list_offsets({one.place: LATEST for one in partitions})
    return {place: Bounds(start, ends[place]) for place, start in starts.items() if place in ends}
